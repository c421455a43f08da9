"""Labels: what a consult at a token is worth, and how values are made and kept."""

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError
from edgewise.registry import Registry
from edgewise_lab.evaluation.store import append, read
from edgewise_lab.evaluation.systems import text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import is_right
from edgewise_lab.rollouts import Continuation, Prefix, Rollouts
from edgewise_lab.training.collect import Sample, Text
from edgewise_lab.training.fit import Objective

Writer = Literal["edge", "cloud"]


class Rollout(NamedTuple):
    """A rollout, and who writes it."""

    writer: Writer
    prefix: Prefix


Labelling = Generator[list[Rollout], list[Continuation], list[float]]
"""Yields rollouts, is sent what they wrote, returns a value from 0 to 1 for every token."""


class Case(NamedTuple):
    """A text, and what the edge proposed (int32[n] as a list) at each of its positions."""

    question: Question
    sample: Sample
    proposed: Sequence[int]
    tokenizer: Tokenizer
    max_tokens: int

    @property
    def mismatches(self) -> list[int]:
        """Positions where the edge would have written another token."""
        ids = self.sample.ids
        return [at for at, token in enumerate(self.proposed) if token != ids[at]]

    def right(
        self, writer: Writer, branches: Sequence[tuple[int, int]]
    ) -> Generator[list[Rollout], list[Continuation], list[bool]]:
        """Whether `writer` ends right after each (position, token written there)."""
        texts = yield from self.branches(writer, branches)
        return [is_right(self.question, text_of(self.tokenizer, ids)) for ids in texts]

    def branches(
        self, writer: Writer, branches: Sequence[tuple[int, int]]
    ) -> Generator[list[Rollout], list[Continuation], list[list[int]]]:
        """The answer's ids with each (position, token written there), as `writer` ends it."""
        texts = [[*self.sample.ids[:at], token] for at, token in branches]
        asked = [i for i, ids in enumerate(texts) if self._room(ids)]
        prompt = self.sample.prompt
        rooms = [self._room(texts[i]) for i in asked]
        written = yield [
            Rollout(writer, Prefix((*prompt, *texts[i]), room))
            for i, room in zip(asked, rooms, strict=True)
        ]
        for i, continuation in zip(asked, written, strict=True):
            texts[i] += continuation.ids
        return texts

    def _room(self, ids: Sequence[int]) -> int:
        return 0 if ids[-1] in self.tokenizer.eos_ids else max(0, self.max_tokens - len(ids))


class Label(Protocol):
    """A way to say what a consult is worth. Its class is created without arguments."""

    name: str
    """Names the file of its values."""

    described: str
    """A few words for the model card."""

    text: Text = "answer"
    """The text that it reads."""

    writers: frozenset[Writer] = frozenset()
    """Writers of its rollouts."""

    objective: Objective = "cross-entropy"
    """Objective that a router is fitted with."""

    hidden: int = 64
    """Width of the router's hidden layer where nobody says; 0 is none."""

    def of(self, case: Case) -> Labelling:
        """The values of one text."""
        ...


TOGETHER = 16
"""Texts whose rollouts are collected into one call, and then kept."""

Values = dict[str, tuple[float, ...]]
"""Values for every token, by question."""


class Labelled(msgspec.Struct, frozen=True):
    """The values of one text."""

    question: str
    values: tuple[float, ...]


def label_all(
    label: Label,
    cases: Sequence[Case],
    rollouts: Mapping[Writer, Rollouts],
    folder: Path,
    done: Callable[[], None] = lambda: None,
    *,
    begun: Callable[[int], None] = lambda left: None,
) -> Values:
    """The values of every case; those that `folder` holds are not made again.

    `begun` gets how many are left to make, and `done` is called after each.
    """
    path = _path(label, folder)
    known = kept_values(label, folder)
    fresh = [case for case in cases if case.question.id not in known]
    begun(len(fresh))
    waiting = iter(fresh)
    while batch := list(islice(waiting, TOGETHER)):
        for case, values in zip(batch, _together(label, batch, rollouts), strict=True):
            line = Labelled(case.question.id, tuple(_checked(label, case, values)))
            append(path, line)
            known[line.question] = line.values
            done()
    return known


def kept_values(label: Label, folder: Path) -> Values:
    """The values that `folder` holds, the last ones made."""
    return {line.question: line.values for line in read(_path(label, folder), Labelled)}


def _path(label: Label, folder: Path) -> Path:
    return folder / f"labels-{label.name}.jsonl"


def _checked(label: Label, case: Case, values: Sequence[float]) -> Sequence[float]:
    if len(values) != len(case.proposed) or not all(0 <= value <= 1 for value in values):
        raise UsageError(
            f"The label {label.name!r} gave {len(values)} values for the {len(case.proposed)} "
            f"tokens of question {case.question.id!r}, or one that is not from 0 to 1",
            hint="repair its class",
        )
    return values


def _together(
    label: Label, cases: Sequence[Case], rollouts: Mapping[Writer, Rollouts]
) -> list[list[float]]:
    """Advance all labellings side by side, their rollouts pooled by writer."""
    found: dict[int, list[float]] = {}
    running = {index: label.of(case) for index, case in enumerate(cases)}
    sent: Mapping[int, list[Continuation]] = {}
    while running:
        asked: dict[int, Sequence[Rollout]] = {}
        for index, labelling in list(running.items()):
            reply: Any = sent.get(index)  # none begins a generator
            try:
                asked[index] = labelling.send(reply)
            except StopIteration as stop:
                found[index] = stop.value
                del running[index]
        sent = _answered(asked, rollouts)
    return [found[index] for index in range(len(cases))]


def _answered(
    asked: Mapping[int, Sequence[Rollout]], rollouts: Mapping[Writer, Rollouts]
) -> dict[int, list[Continuation]]:
    pooled: dict[Writer, list[Prefix]] = {}
    for ask in (ask for asks in asked.values() for ask in asks):
        pooled.setdefault(ask.writer, []).append(ask.prefix)
    if unnamed := pooled.keys() - rollouts.keys():
        raise UsageError(
            f"A label asks for rollouts by the {min(unnamed)}", hint="name it in its writers"
        )
    written = {writer: iter(rollouts[writer].run(some)) for writer, some in pooled.items()}
    return {index: [next(written[ask.writer]) for ask in asks] for index, asks in asked.items()}


LABELS: Registry[type[Label]] = Registry(
    "label",
    "edgewise.labels",
    {
        "value": "edgewise_lab.training.labels.published:Value",
        "final": "edgewise_lab.training.labels.published:Final",
        "rescue": "edgewise_lab.training.labels.published:Rescue",
        "r2r": "edgewise_lab.training.labels.published:R2R",
    },
    wanted=("of", "text", "writers", "objective", "hidden"),
)
