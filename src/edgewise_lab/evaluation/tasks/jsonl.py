"""Anyone's questions: a JSON object a line."""

from pathlib import Path

import msgspec

from edgewise.errors import UsageError
from edgewise_lab.evaluation.tasks.base import Grading, Question, Task
from edgewise_lab.evaluation.tasks.records import read_lines

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
