"""Tasks: questions, each with its grading; and sources of tasks."""

import ast
import hashlib
import json
import re
import string
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from edgewise.errors import UsageError
from edgewise.prompts import Message

LETTERS = string.ascii_lowercase
"""Letters of choices, in order."""

Split = Literal["train", "calibration", "test", "frames", "facts"]
Grading = Literal["choice", "number", "contains", "exact", "regex", "words", "code", "json", "read"]


class Question(msgspec.Struct, frozen=True):
    """`prompt` is the user's last message, after those of `before`.

    `answer` is what `check` says: a choice's text, a number, words that the reply contains, the
    whole text, a regular expression, a text with the same content words, Python that tests the
    reply's code, a JSON Schema, or in a sentence what a person who reads it looks for. Not `known`,
    the cloud's own takes its place (`agreeing`). `reference` is a whole right answer. Raises
    `UsageError` for an answer that `check` cannot use.
    """

    id: str
    family: str
    prompt: str
    answer: str
    check: Grading
    reference: str = ""
    choices: tuple[str, ...] | None = None
    before: tuple[Message, ...] = ()
    known: bool = True

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation."""
        return (*self.before, Message("user", self.prompt))

    @property
    def text(self) -> str:
        """Identifies what is asked: the prompt, with the conversation before it."""
        return "\n".join([*(f"{turn.role}: {turn.content}" for turn in self.before), self.prompt])

    def __post_init__(self) -> None:
        if self.known and self.check == "choice" and self.answer not in (self.choices or ()):
            raise UsageError(
                f"Question {self.id!r} has an answer that is not one of its choices",
                hint="give a choice's text or its letter",
            )
        if self.known and self.check == "number" and not re.search(r"\d", self.answer):
            raise UsageError(
                f"The answer {self.answer!r} of question {self.id!r} is not a number",
                hint="leave the check out",
                setting="check",
            )
        if len(self.choices or ()) > len(LETTERS):
            raise UsageError(
                f"Question {self.id!r} has {len(self.choices or ())} choices",
                hint=f"give at most {len(LETTERS)}",
            )
        if problem := _unusable(self.check, self.answer) if self.known else None:
            raise UsageError(f"The answer of question {self.id!r} is not {problem}.")


def _unusable(check: Grading, answer: str) -> str | None:
    """Why `check` cannot use an answer; None if it can."""
    try:
        match check:
            case "regex":
                re.compile(answer)
            case "code":
                ast.parse(answer)
            case "json":
                _require_schema(answer)
            case _:
                pass
    except re.error as error:
        return f"a regular expression: {error}"
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{'Python' if check == 'code' else 'a JSON Schema'}: {error}"
    return None


def _require_schema(text: str) -> None:
    """Raises `ValueError`, or `UsageError` without the library."""
    try:
        from jsonschema import SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for
    except ImportError as error:
        raise UsageError(
            "Checking JSON needs jsonschema", hint="pip install 'edgewise[lab]'"
        ) from error
    schema: object = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("it is no object")
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        raise ValueError(error.message) from error


class Task(msgspec.Struct, frozen=True):
    """A named set of questions; `max_tokens` is the longest answer."""

    name: str
    questions: tuple[Question, ...]
    max_tokens: int

    @property
    def known(self) -> bool:
        """Whether every right answer is known."""
        return all(question.known for question in self.questions)

    @property
    def to_read(self) -> int:
        """Questions whose replies a person must read."""
        return sum(question.check == "read" for question in self.questions)

    @property
    def families(self) -> tuple[str, ...]:
        """Families in the order of their first questions."""
        return tuple(dict.fromkeys(question.family for question in self.questions))

    def first(self, limit: int | None) -> "Task":
        """The first `limit` questions."""
        return msgspec.structs.replace(self, questions=self.questions[:limit])


class TaskSource(Protocol):
    """The source of a named task. Its class is created without arguments."""

    name: str
    splits: tuple[Split, ...]
    """Its separate splits. Without a calibration split the end of another is used."""

    local: bool = False
    """Whether `open` reads a local copy of the published file as well."""

    def open(self, split: Split, data: Path | None = None) -> Task:
        """Opens one of `splits`, or the file `data`. Raises `UsageError`."""
        ...


TRAINED_ON, MAX_TRAINED_ON = "trained_on.txt", 64 << 20


def digest(prompt: str) -> str:
    """Hash of a question in `trained_on.txt`, a line each: 16 hexadecimal digits."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def trained_digests(folder: Path) -> frozenset[str]:
    """Digests of the prompts that a checkpoint's weights were fitted to; raises `UsageError`."""
    path = folder / TRAINED_ON
    if not path.is_file():
        return frozenset()
    if path.stat().st_size > MAX_TRAINED_ON:
        raise UsageError(f"{str(path)!r} is larger than {MAX_TRAINED_ON >> 20} MB: not a router's.")
    return frozenset(path.read_bytes().decode("ascii", "replace").split())
