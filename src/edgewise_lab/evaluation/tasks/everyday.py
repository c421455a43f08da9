"""Prompts as people type them to a chat assistant."""

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import msgspec

from edgewise.prompts import Message
from edgewise_lab.evaluation.tasks.base import Grading, Question, Split, Task, TaskSource

MAX_TOKENS = 1024


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    family: str
    check: Grading
    answer: str
    reference: str
    prompt: str = ""
    messages: tuple[Message, ...] = ()


class Everyday(TaskSource):
    """The task `everyday`, which is bundled. Its first 20 prompts are short and of mixed kinds."""

    name = "everyday"
    splits = ("test",)

    def open(self, split: Split, data: Path | None = None) -> Task:
        return Task(self.name, tuple(map(_question, _lines())), MAX_TOKENS)


def first(count: int) -> Task:
    """Return the first `count` prompts that can be graded by what is installed, running no code."""
    without = {"code"} if find_spec("jsonschema") else {"code", "json"}
    can = [line for line in _lines() if line.check not in without]
    return Task(Everyday.name, tuple(map(_question, can[:count])), MAX_TOKENS)


def _lines() -> list[_Line]:
    held = files("edgewise_lab.evaluation.tasks").joinpath("everyday.jsonl").read_bytes()
    return [msgspec.json.decode(line, type=_Line) for line in held.splitlines()]


def _question(held: _Line) -> Question:
    *before, last = held.messages or (Message("user", held.prompt),)
    return Question(
        id=held.id,
        family=held.family,
        prompt=last.content,
        answer=held.answer,
        check=held.check,
        reference=held.reference,
        before=tuple(before),
    )
