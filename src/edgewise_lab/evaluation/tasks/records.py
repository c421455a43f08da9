"""Read questions from a file: JSON Lines, plain prompts, or a hub dataset's Parquet file."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from edgewise.errors import UsageError
from edgewise.hub.client import HubAddress, Repository
from edgewise.prompts import Message
from edgewise.settings import unmarked
from edgewise_lab.evaluation.tasks.base import LETTERS, Grading, Question, Task
from edgewise_lab.evaluation.tasks.grading import suited

MAX_FILE = 256 << 20
"""Size of the largest file that is read, in bytes, unpacked."""

STDIN = Path("-")
"""The path that stands for stdin."""

_GZIP = b"\x1f\x8b"
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Record = TypeVar("Record", bound=msgspec.Struct)


def read_lines(path: Path, kind: type[Record]) -> Iterator[tuple[int, Record]]:
    """Yield (number from 1, record) of each line that is not empty in a JSON Lines file.

    Raises `UsageError` for an unreadable file or an invalid line.
    """
    for number, line in lines_of(path):
        yield number, _decoded(path, number, line, kind)


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, bytes) of each line that is not empty, of a file or stdin (`-`).

    Gzip is unpacked. Raises `UsageError` for a file that is unreadable or larger than `MAX_FILE`.
    """
    try:
        # What is no file, such as a pipe, has no size before it was read.
        with nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb") as file:
            held = file.read(MAX_FILE + 1)
        if held.startswith(_GZIP):
            with gzip.open(io.BytesIO(held)) as packed:
                held = packed.read(MAX_FILE + 1)
        if len(held) > MAX_FILE:
            raise UsageError(f"{str(path)!r} is larger than {MAX_FILE >> 20} MB", hint="split it")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{str(path)!r} cannot be read: {reason}.") from error
    for number, line in enumerate(unmarked(held).splitlines(), 1):
        if line.strip():
            yield number, line


def _decoded(path: Path, number: int, line: bytes, kind: type[Record]) -> Record:
    try:
        return msgspec.json.decode(line, type=kind)
    except _UNREADABLE as error:
        raise UsageError(
            f"Line {number} of {str(path)!r} is not valid: {error}",
            hint='a line of one\'s own is like {"prompt": "2 + 2?", "answer": "4"}'
            if kind is _Line
            else None,
        ) from error


def read_parquet(repo: str, name: str, kind: type[Record]) -> Iterator[Record]:
    """Yield the rows of the Parquet file `name` in a hub dataset, downloaded if need be.

    Raises `UsageError` without pyarrow, and for a file that is unreadable or has other columns.
    """
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(
            "Reading a hub dataset needs pyarrow",
            hint="pip install 'edgewise[lab]', or name a local copy of the published file",
            setting="data",
        ) from error
    address = HubAddress(repo, None, None, name)
    path = Repository(address, setting="data", kind="dataset").file(name)
    try:
        rows = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, ArithmeticError, MemoryError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{str(path)!r} is not a readable Parquet file ({reason})", hint="remove it"
        ) from error
    try:
        yield from (msgspec.convert(row, type=kind) for row in rows)
    except msgspec.ValidationError as error:
        raise UsageError(f"{repo}/{name} does not hold what was expected: {error}.") from error


MAX_TOKENS = 256


class _Graded(msgspec.Struct, frozen=True, kw_only=True):
    answer: str | int | float | None = None
    check: Grading | None = None
    choices: tuple[str, ...] | None = None
    family: str | None = None
    id: str | None = None
    reference: str = ""


class _Line(_Graded, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str


class _Part(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class _Turn(msgspec.Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | tuple[_Part, ...]


class _Conversation(msgspec.Struct, frozen=True):
    """A chat log with any other fields; it becomes a graded question if it has an `answer`."""

    messages: tuple[_Turn, ...]
    answer: object = None


class _Asked(_Graded, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: tuple[_Turn, ...]


def jsonl(data: Path, check: Grading | None) -> Task:
    """Read a task from a JSON Lines file, as docs/evaluation.md describes it.

    `check` is how lines without a check of their own are graded (default: `suited`). Raises
    `UsageError` for an unreadable file, an invalid line, or if only some lines have an answer.
    """
    questions = tuple(_question(data, number, line, check) for number, line in lines_of(data))
    if len({question.known for question in questions}) > 1:
        number = next(question.id for question in questions if not question.known)
        raise UsageError(
            f"Some questions of {str(data)!r} have an answer and others, such as {number}, none",
            hint="give all or none",
        )
    return Task(data.stem, questions, MAX_TOKENS)


def prompts(data: Path) -> Task:
    """Read a task from a file with a prompt on each line; a line that begins with "{" is JSON.

    JSON is read as by `jsonl`. Raises `UsageError` for an unreadable file or an invalid line.
    """
    questions = tuple(
        _question(data, number, line, None, text=not line.lstrip().startswith(b"{"))
        for number, line in lines_of(data)
    )
    return Task(data.stem, questions, MAX_TOKENS)


def _question(
    data: Path, number: int, line: bytes, check: Grading | None, *, text: bool = False
) -> Question:
    try:
        if text:
            before, last, graded = [], Message("user", line.decode().strip()), _Graded()
        elif b'"messages"' in line and not _is_prompt(line):
            log = _decoded(data, number, line, _Conversation)
            *before, last = _asked(log.messages)
            graded = _Graded() if log.answer is None else _decoded(data, number, line, _Asked)
        else:
            held = _decoded(data, number, line, _Line)
            before, last, graded = [], Message("user", held.prompt), held
        known, choices = graded.answer is not None, graded.choices
        answer = str(graded.answer) if known else ""
        check = graded.check or check
        check = (check or suited(answer, choices)) if known else _open(check, choices)
        if check == "choice" and choices and answer not in choices and len(answer) == 1:
            # The letter of a choice stands for it.
            answer = dict(zip(LETTERS, choices, strict=False)).get(answer.lower(), answer)
        return Question(
            id=graded.id or str(number),
            family=graded.family or data.stem,
            prompt=last.content,
            answer=answer,
            check=check,
            reference=graded.reference,
            choices=choices,
            before=tuple(before),
            known=known,
        )
    except UnicodeDecodeError as error:
        why = f"Line {number} of {str(data)!r} is not UTF-8"
        raise UsageError(why, hint="save the file as UTF-8") from error
    except UsageError as error:
        if error.message.startswith("Line "):
            raise
        why = f"Line {number} of {str(data)!r} is not valid: {error.message}"
        raise UsageError(why, hint=error.hint) from error


def _is_prompt(line: bytes) -> bool:
    """Whether a line with the word "messages" lacks the field of that name, or is not JSON."""
    try:
        held = msgspec.json.decode(line)
    except _UNREADABLE:
        return True
    return not isinstance(held, dict) or "messages" not in held


def _asked(messages: Sequence[_Turn]) -> list[Message]:
    """Return the conversation up to the last user message. Raises `UsageError` without one."""
    turns: list[Message] = []
    for turn in messages:
        role, content = turn.role, turn.content
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)
        turns.append(Message("system" if role == "developer" else role, content))
    while turns and turns[-1].role != "user":
        turns.pop()
    if not turns:
        raise UsageError("it has no message of a user", hint="leave it out")
    return turns


def _open(check: Grading | None, choices: tuple[str, ...] | None) -> Grading:
    """Return how to grade a question whose answer becomes the cloud's."""
    if check not in ("choice", "number", "words", None):
        raise UsageError("it has no answer to check", hint="leave the check out", setting="check")
    return check or ("choice" if choices else "words")
