"""The frozen questions of the bundled pair."""

import gzip
from importlib.resources import files
from pathlib import Path

import msgspec

from edgewise_lab.evaluation.tasks.base import Grading, Question, Split, Task, TaskSource

MAX_TOKENS = 128


class _Record(msgspec.Struct, frozen=True):
    id: str
    family: str
    split: Split
    prompt: str
    answer: str
    check: Grading
    choices: tuple[str, ...] | None
    reference: str = ""


class PocketQa(TaskSource):
    """Bundled: there is no other copy.

    `frames` and `facts` are test sets of what no router was trained on: other wordings of questions
    and another style of answers, and facts kept apart.
    """

    name = "pocketqa"
    splits = ("train", "calibration", "test", "frames", "facts")

    def open(self, split: Split, data: Path | None = None) -> Task:
        return pocketqa(split)


def pocketqa(split: Split = "test") -> Task:
    """The bundled questions of one split, the families alternating."""
    packed = files("edgewise_lab.evaluation.tasks").joinpath("pocketqa.jsonl.gz").read_bytes()
    lines = gzip.decompress(packed).splitlines()
    records = [msgspec.json.decode(line, type=_Record) for line in lines]
    rank: dict[str, int] = {}
    order: list[tuple[int, Question]] = []
    for record in records:
        if record.split == split:
            rank[record.family] = rank.get(record.family, -1) + 1
            order.append((rank[record.family], _question(record)))
    questions = tuple(question for _, question in sorted(order, key=lambda pair: pair[0]))
    return Task("pocketqa", questions, MAX_TOKENS)


def _question(record: _Record) -> Question:
    return Question(
        id=record.id,
        family=record.family,
        prompt=record.prompt,
        answer=record.answer,
        check=record.check,
        reference=record.reference,
        choices=record.choices,
    )
