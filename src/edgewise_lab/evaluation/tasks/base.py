"""Tasks, which are sets of questions with right answers, and the sources that they come from."""

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
from edgewise.registry import imported

LETTERS = string.ascii_lowercase
"""Letters that label the choices of a question, in order."""

Split = Literal["train", "calibration", "test", "frames", "facts"]
Grading = Literal["choice", "number", "contains", "exact", "regex", "words", "code", "json", "read"]


class Question(msgspec.Struct, frozen=True):
    """A question of a task, with its right answer and how replies are graded.

    `prompt` is the user's last message, `before` the conversation before it. `family` names the
    kind of question, for figures by kind. `choices` are the texts to choose from, if any.

    `check` is the way of grading and says what `answer` is. "choice": the right choice's text.
    "number": the number. "contains": words that the reply must contain. "exact": the whole reply.
    "regex": a pattern that occurs in the reply. "words": a text with similar content words (see
    `overlap`). "code": Python that tests the reply's code. "json": a JSON Schema. "read": what a
    person looks for. An answer that is not `known` is replaced by the cloud's (`agreeing`).
    `reference` is a whole right reply.

    Raises `UsageError` for an answer that `check` cannot use, and for more than 26 choices.
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
        """The whole conversation, with `prompt` as the user's last message."""
        return (*self.before, Message("user", self.prompt))

    @property
    def text(self) -> str:
        """The conversation as one text: a line "role: content" for each message, then `prompt`."""
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
    """Return why `check` cannot use an answer, to follow "is not"."""
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
    """Raise `ValueError` if `text` is no JSON Schema, `UsageError` without the library."""
    validators, exceptions = imported("lab", "jsonschema.validators", "jsonschema.exceptions")
    schema: object = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("it is no object")
    try:
        kind = validators.validator_for(schema, default=validators.Draft202012Validator)
        kind.check_schema(schema)
    except exceptions.SchemaError as error:
        raise ValueError(error.message) from error


class Task(msgspec.Struct, frozen=True):
    """A named set of questions; `max_tokens` is the maximum length of an answer, in tokens."""

    name: str
    questions: tuple[Question, ...]
    max_tokens: int

    @property
    def known(self) -> bool:
        return all(question.known for question in self.questions)

    @property
    def to_read(self) -> int:
        """Number of questions whose replies a person must grade."""
        return sum(question.check == "read" for question in self.questions)

    @property
    def families(self) -> tuple[str, ...]:
        """The kinds of questions (`Question.family`), in the order of their first questions."""
        return tuple(dict.fromkeys(question.family for question in self.questions))

    def first(self, limit: int | None) -> "Task":
        """Return the task with only its first `limit` questions (None: all)."""
        return msgspec.structs.replace(self, questions=self.questions[:limit])


class TaskSource(Protocol):
    """The source of a task that users choose by name. Its class takes no arguments."""

    name: str
    splits: tuple[Split, ...]
    """Splits that `open` takes. Without "calibration", thresholds use the end of another one."""

    local: bool = False
    """Whether `open` also reads a local copy of the published file."""

    def open(self, split: Split, data: Path | None = None) -> Task:
        """Return the questions of `split`, or all in `data`, a local copy of the file (if `local`).

        Raises `UsageError` if they cannot be read.
        """
        ...


TRAINED_ON, MAX_TRAINED_ON = "trained_on.txt", 64 << 20


def digest(prompt: str) -> str:
    """Return the first 16 hex digits of a text's SHA-256, as in the file `trained_on.txt`."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def trained_digests(folder: Path) -> frozenset[str]:
    """Return the digests of the questions that a checkpoint was trained on; empty if unlisted.

    Raises `UsageError` if the list is larger than `MAX_TRAINED_ON` (64 MB).
    """
    path = folder / TRAINED_ON
    if not path.is_file():
        return frozenset()
    if path.stat().st_size > MAX_TRAINED_ON:
        raise UsageError(f"{str(path)!r} is larger than {MAX_TRAINED_ON >> 20} MB: not a router's.")
    return frozenset(path.read_bytes().decode("ascii", "replace").split())
