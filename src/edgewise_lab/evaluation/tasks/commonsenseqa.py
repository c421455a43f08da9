"""CommonsenseQA (Talmor et al. 2019), as two tasks that differ in the prompt."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgewise.errors import UsageError
from edgewise_lab.evaluation.tasks.base import LETTERS, Question, Split, Task, TaskSource
from edgewise_lab.evaluation.tasks.records import read_lines, read_parquet

MAX_TOKENS, PAPER_TOKENS = 1024, 100
HUB = "tau/commonsense_qa"
FILES: dict[Split, str] = {
    "train": "data/train-00000-of-00001.parquet",
    "test": "data/validation-00000-of-00001.parquet",
}
CHAT_FORMAT = (
    'Think step by step in two or three sentences, then end with "Answer: X", X being the letter.'
)
FORMAT = (
    "Please format your response in the following way: [Explanation]. Therefore, the answer is "
    "answer (label). Answer and Reasoning:"
)


class _Choice(msgspec.Struct, frozen=True):
    label: str
    text: str


class _Asked(msgspec.Struct, frozen=True):
    stem: str
    choices: list[_Choice]


class _Line(msgspec.Struct, frozen=True):
    """A line of the published file dev_rand_split.jsonl."""

    id: str
    question: _Asked
    answerKey: str


class _Columns(msgspec.Struct, frozen=True):
    label: list[str]
    text: list[str]


class _Row(msgspec.Struct, frozen=True):
    """A row of the hub's Parquet file."""

    id: str
    question: str
    choices: _Columns
    answerKey: str


class CommonsenseQa(TaskSource):
    """CommonsenseQA, replies to end with "Answer: X". "test" is the published development set."""

    name = "commonsenseqa"
    splits = ("train", "test")
    local = True
    max_tokens = MAX_TOKENS

    def open(self, split: Split, data: Path | None = None) -> Task:
        if data is None:
            rows = read_parquet(HUB, FILES[split], _Row)
            questions = [
                _question(row.id, row.question, row.choices.label, row.choices.text, row.answerKey)
                for row in rows
            ]
        else:
            questions = [_of_line(line) for _, line in read_lines(data, _Line)]
        return Task(self.name, tuple(map(self._asked, questions)), self.max_tokens)

    def _asked(self, question: Question) -> Question:
        """Return the question with a full prompt in place of its stem (the bare question)."""
        labelled = zip(LETTERS.upper(), question.choices or (), strict=False)
        listed = "\n".join(f"{label}) {text}" for label, text in labelled)
        return replace(question, prompt=f"{question.prompt}\n{listed}\n\n{CHAT_FORMAT}")


class CommonsenseQaPaper(CommonsenseQa):
    """CommonsenseQA with the prompt of arXiv 2504.07878."""

    name = "commonsenseqa-paper"
    max_tokens = PAPER_TOKENS

    def _asked(self, question: Question) -> Question:
        labelled = zip(LETTERS.upper(), question.choices or (), strict=False)
        listed = " ".join(f"{label}. {text}" for label, text in labelled)
        prompt = f"Question: {question.prompt} Choices: {listed} {FORMAT}"
        return replace(question, prompt=prompt)


def _of_line(line: _Line) -> Question:
    asked = line.question
    labels, texts = [one.label for one in asked.choices], [one.text for one in asked.choices]
    return _question(line.id, asked.stem, labels, texts, line.answerKey)


def _question(
    name: str, stem: str, labels: Sequence[str], texts: Sequence[str], key: str
) -> Question:
    if key not in labels or len(labels) != len(texts):
        raise UsageError(
            f"Question {name!r} has no choice {key!r}", hint="use a split with answers"
        )
    return Question(
        id=name,
        family="commonsenseqa",
        prompt=stem,
        answer=texts[labels.index(key)],
        check="choice",
        choices=tuple(texts),
    )
