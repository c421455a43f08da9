"""The frozen questions of the bundled pair."""

import gzip
from importlib.resources import files
from pathlib import Path

import msgspec

from edgewise_lab.evaluation.tasks.base import Question, Split, Task, TaskSource

MAX_TOKENS = 128


class _Split(msgspec.Struct, frozen=True):
    """Fields of a line beside its question."""

    split: Split


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
    rank: dict[str, int] = {}
    order: list[tuple[int, Question]] = []
    for line in lines:
        if msgspec.json.decode(line, type=_Split).split == split:
            question = msgspec.json.decode(line, type=Question)
            rank[question.family] = rank.get(question.family, -1) + 1
            order.append((rank[question.family], question))
    questions = tuple(question for _, question in sorted(order, key=lambda pair: pair[0]))
    return Task("pocketqa", questions, MAX_TOKENS)
