"""What is compared, on which questions, with how many of them, and where it is kept."""

from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

from edgewise.errors import UsageError
from edgewise_lab.evaluation.tasks.base import Question, Split, Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.training.labels.base import LABELS, Label, labels_named

SETS = ("test", "frames", "facts", "left-out")
"""Ordinary questions, other wordings, other facts, and the ordinary ones again, each family with
routers that were trained without it."""

INPUTS: tuple[str, ...] = ("hidden", "top_logprobs", "scalars")
ABLATED: tuple[tuple[str, ...], ...] = (
    ("scalars",),
    ("top_logprobs",),
    ("hidden",),
    INPUTS,
    (*INPUTS, "token_embedding"),
)
PRODUCT = ("random", "max-prob", "margin", "entropy")
TOP_ENTROPY = "entropy of the top 10"
THREE_TOKENS, POSITION, RULE = "three tokens", "position", "digit rule"
UNTRAINED = (*PRODUCT, TOP_ENTROPY, RULE)
QUERY, QUERY_TRAINED = "query level", "query level, trained"
GATES = (THREE_TOKENS, POSITION, RULE)
GATE_SHARES = (0.03, 0.05, 0.07)
GATES_LABEL = "value"
"""What gates learn; the query level reads the same texts."""


class Entry(NamedTuple):
    """One router: a label's by name, or another of this module's names; `without` a family."""

    name: str
    seed: int = 0
    without: str = ""
    inputs: tuple[str, ...] = INPUTS

    @property
    def trained(self) -> bool:
        return self.name not in UNTRAINED

    @property
    def key(self) -> str:
        """Its folder."""
        parts = [self.name.replace(" ", "-").replace(",", ""), str(self.seed)]
        if self.inputs != INPUTS:
            parts.append("+".join(self.inputs))
        return "-".join([*parts, *(["without", self.without] if self.without else [])])


class Plan(NamedTuple):
    """Sizes of a run. `train`, `calibration` and `questions` are of each family."""

    work: Path
    labels: tuple[str, ...]
    seeds: int
    shares: tuple[float, ...]
    sets: tuple[str, ...]
    train: int
    calibration: int
    questions: int
    inputs: tuple[tuple[str, ...], ...] = (INPUTS,)
    baselines: bool = True

    def task(self, name: str) -> Task:
        """The questions of a split. Raises `UsageError` where there are none."""
        each = {"train": self.train, "calibration": self.calibration}.get(name, self.questions)
        return _first(name, each)

    def entries(self, name: str) -> list[Entry]:
        """The routers with a threshold that answer one set of questions."""
        trained = [*self.labels, *((THREE_TOKENS, POSITION) if self.baselines else ())]
        left_out = self.task(split_of(name)).families if name == "left-out" else ("",)
        found = [
            Entry(row, seed, family, inputs)
            for row in trained
            for inputs in (self.inputs if row in self.labels else (INPUTS,))
            for seed in range(1 if row == POSITION else self.seeds)
            for family in left_out
        ]
        return found + [Entry(row) for row in UNTRAINED if self.baselines]

    def queries(self, name: str) -> list[Entry]:
        """The trained routers of whole questions."""
        left_out = self.task(split_of(name)).families if name == "left-out" else ("",)
        seeds = range(self.seeds if self.baselines else 0)
        return [Entry(QUERY_TRAINED, seed, family) for seed in seeds for family in left_out]

    def shares_of(self, entry: Entry) -> tuple[float, ...]:
        """What is asked for; gates are judged at shares of their own as well."""
        more = GATE_SHARES if entry.name in GATES else ()
        return tuple(sorted({*self.shares, *more}))


@cache
def _first(name: str, each: int) -> Task:
    found = pocketqa(cast(Split, name))
    if not found.questions:
        raise UsageError(f"pocketqa has no split {name!r}", hint="name other sets")
    return first_of_each(found, each)


def split_of(name: str) -> str:
    """The split that holds a set's questions."""
    return "test" if name == "left-out" else name


def first_of_each(task: Task, count: int) -> Task:
    """The first `count` questions of every family, in their order."""
    left = dict.fromkeys(task.families, count)
    kept: list[Question] = []
    for question in task.questions:
        if left[question.family]:
            left[question.family] -= 1
            kept.append(question)
    return Task(task.name, tuple(kept), task.max_tokens)


def of_families(task: Task, families: tuple[str, ...]) -> Task:
    """The questions of some families."""
    kept = tuple(question for question in task.questions if question.family in families)
    return Task(task.name, kept, task.max_tokens)


def without(task: Task, family: str) -> Task:
    """The questions of all families but one."""
    return of_families(task, tuple(name for name in task.families if name != family))


def labels() -> list[str]:
    """All that a router can be trained for."""
    return list(LABELS.names())


def rounds(label: str) -> list[Label]:
    """Those of a label's training. The outcome judges for R2R: the bundled cloud cannot."""
    return labels_named(label, judge="outcome" if label == "r2r" else None)
