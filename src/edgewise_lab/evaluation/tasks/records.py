"""Anyone's questions from a file: a JSON object a line, or a hub data set's Parquet file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from edgewise.errors import UsageError
from edgewise.hub.client import dataset_file
from edgewise_lab.evaluation.tasks.base import Grading, Question, Task

MAX_FILE = 256 << 20
"""Largest file that is read, bytes."""

Record = TypeVar("Record", bound=msgspec.Struct)


def read_lines(path: Path, kind: type[Record]) -> Iterator[tuple[int, Record]]:
    """Line number and record of each line that is not empty. Raises `UsageError`."""
    try:
        # What is no file, such as a pipe, has no size before it was read.
        with path.open("rb") as file:
            held = file.read(MAX_FILE + 1)
        if len(held) > MAX_FILE:
            raise UsageError(f"{str(path)!r} is larger than {MAX_FILE >> 20} MB", hint="split it")
        lines = held.splitlines()
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line, type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UsageError(
                    f"Line {number} of {str(path)!r} is not valid: {error}."
                ) from error


def read_parquet(repo: str, name: str, kind: type[Record]) -> Iterator[Record]:
    """The rows of a file in a hub dataset, downloaded if need be."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(
            "Reading a hub dataset needs pyarrow",
            hint="pip install 'edgewise[lab]', or name a local copy of the published file",
            setting="data",
        ) from error
    path = dataset_file(repo, name)
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


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt: str
    answer: str
    choices: tuple[str, ...] | None = None
    family: str | None = None
    id: str | None = None
    reference: str = ""


def jsonl(data: Path, check: Grading) -> Task:
    """Lines `{"prompt": ..., "answer": ...}`, optionally with choices, family, id and
    reference, a whole right answer.

    The answer is the text wanted, a number, a regular expression to be found, or one of the
    choices, as `check` says.
    """
    lines = read_lines(data, _Line)
    questions = tuple(_question(data, number, line, check) for number, line in lines)
    return Task(data.stem, questions, MAX_TOKENS)


def _question(data: Path, number: int, line: _Line, check: Grading) -> Question:
    try:
        return Question(
            id=line.id or str(number),
            family=line.family or data.stem,
            prompt=line.prompt,
            answer=line.answer,
            check=check,
            reference=line.reference,
            choices=line.choices,
        )
    except UsageError as error:
        raise UsageError(
            f"Line {number} of {str(data)!r} is not valid: {error.message}", hint=error.hint
        ) from error
