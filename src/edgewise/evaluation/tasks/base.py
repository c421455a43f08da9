"""What a task is: questions, each with the way its answer is graded."""

from typing import Literal

import msgspec

Split = Literal["train", "calibration", "test"]
Grading = Literal["choice", "number", "exact", "regex"]


class Question(msgspec.Struct, frozen=True):
    """`prompt` is the user's message; `reference` a whole right answer, where there is one.

    `answer` is a choice's text, a number, the whole text or a regular expression, as `check` says.
    """

    id: str
    family: str
    prompt: str
    answer: str
    check: Grading
    reference: str = ""
    choices: tuple[str, ...] | None = None
    label: str | None = None


class Task(msgspec.Struct, frozen=True):
    """A named set of questions; `max_tokens` is the longest answer."""

    name: str
    questions: tuple[Question, ...]
    max_tokens: int

    @property
    def families(self) -> tuple[str, ...]:
        """In the order of their first questions."""
        return tuple(dict.fromkeys(question.family for question in self.questions))

    def first(self, limit: int | None) -> "Task":
        """The first `limit` questions."""
        return msgspec.structs.replace(self, questions=self.questions[:limit])
