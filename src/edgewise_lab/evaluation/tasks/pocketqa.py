"""PocketQA: the fixed questions that come with the bundled pair of models."""

import gzip
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from edgewise_lab.evaluation.tasks.base import Question, Split, Task, TaskSource

MAX_TOKENS = 128


class _Split(msgspec.Struct, frozen=True):
    split: Split


class PocketQa(TaskSource):
    """The task `pocketqa`. Two of its splits test what routers were not trained on.

    "frames" puts questions and answers in other words; "facts" has facts that no other split has.
    """

    name = "pocketqa"
    splits = ("train", "calibration", "test", "frames", "facts")

    def open(self, split: Split, data: Path | None = None) -> Task:
        return pocketqa(split)


@cache
def pocketqa(split: Split = "test") -> Task:
    """Return the questions of one split, with the families (kinds of questions) alternating."""
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
