"""Training labels: how much a consult would help, at every token of a text."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
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

Writer = Literal["edge", "cloud"]


class Rollout(NamedTuple):
    """A request to a model (`writer`) to continue `prefix`; a `Continuation` (ids) answers it."""

    writer: Writer
    prefix: Prefix


Labelling = Generator[list[Rollout], list[Continuation], list[float]]
"""Yields lists of rollouts, is sent their continuations, returns a value (0 to 1) per token."""


class Case(NamedTuple):
    """A text to label, `sample.ids`, and the edge's likeliest id (`proposed`) at each position.

    `max_tokens` limits the ids of a whole answer that begins like the text.
    """

    question: Question
    sample: Sample
    proposed: Sequence[int]
    tokenizer: Tokenizer
    max_tokens: int

    @property
    def mismatches(self) -> list[int]:
        """Positions in the text at which the edge model would have written another token."""
        ids = self.sample.ids
        return [at for at, token in enumerate(self.proposed) if token != ids[at]]

    def values(self, places: Sequence[int], found: Iterable[float]) -> list[float]:
        """Return a value for each token: those `found` at the indices `places`, and 0 elsewhere."""
        values = [0.0] * len(self.proposed)
        for at, value in zip(places, found, strict=True):
            values[at] = float(value)
        return values

    def right(
        self, writer: Writer, branches: Sequence[tuple[int, int]]
    ) -> Generator[list[Rollout], list[Continuation], list[bool]]:
        """Return whether each answer that `branches` makes is right; `yield from` it likewise."""
        texts = yield from self.branches(writer, branches)
        return [is_right(self.question, text_of(self.tokenizer, ids)) for ids in texts]

    def branches(
        self, writer: Writer, branches: Sequence[tuple[int, int]]
    ) -> Generator[list[Rollout], list[Continuation], list[list[int]]]:
        """Return the ids of a whole answer for each (position, token) in `branches`.

        They are the text's before the position, the token, and, unless that ends the answer, what
        `writer` continues with. Call it by `yield from` in `Label.of`: it yields rollouts.
        """
        texts = [[*self.sample.ids[:at], token] for at, token in branches]
        rooms = [self.max_tokens - len(ids) for ids in texts]
        ends, prompt = self.tokenizer.eos_ids, self.sample.prompt
        asked = [i for i, ids in enumerate(texts) if rooms[i] > 0 and ids[-1] not in ends]
        written = yield [Rollout(writer, Prefix((*prompt, *texts[i]), rooms[i])) for i in asked]
        for i, continuation in zip(asked, written, strict=True):
            texts[i] += continuation
        return texts


class Label(Protocol):
    """A kind of label: how much a consult would help at each token. Made without arguments."""

    name: str
    """Name; the label's values are kept in `labels-NAME.jsonl`."""

    described: str
    """Description in a few words, for the router's model card."""

    text: Text = "answer"
    """Which texts are labelled: the cloud model's answers, or the edge model's own."""

    writers: frozenset[Writer] = frozenset()
    """The models that `of` may ask for rollouts: to continue a text."""

    def of(self, case: Case) -> Labelling:
        """Return a generator that is sent the continuations of the rollouts that it yields.

        At its end it returns a value from 0 to 1 for each token of the text.
        """
        ...


TOGETHER = 16
"""Number of texts labelled together: their rollouts are pooled, then all values are stored."""

Values = dict[str, tuple[float, ...]]
"""Maps a question's id to the values of its text, one for every token."""


class Labelled(msgspec.Struct, frozen=True):
    """A line of a label's file: values for the tokens of the answer to `question` (an id)."""

    question: str
    values: tuple[float, ...]


def label_all(
    label: Label,
    cases: Sequence[Case],
    rollouts: Mapping[Writer, Rollouts],
    folder: Path,
    begin: Callable[[int], Callable[[], None]] = lambda left: lambda: None,
) -> Values:
    """Return all values in `folder`; those of `cases` that it lacks are computed and stored.

    `rollouts` has an entry for each model in `label.writers`. `begin` gets the number of cases to
    compute; what it returns is called after each. Raises `UsageError` where the label returns
    invalid values or asks for another model, and a `CloudError` where a model fails.
    """
    known = kept_values(label, folder)
    fresh = [case for case in cases if case.question.id not in known]
    done = begin(len(fresh))
    waiting = iter(fresh)
    while batch := list(islice(waiting, TOGETHER)):
        for case, values in zip(batch, _together(label, batch, rollouts), strict=True):
            line = Labelled(case.question.id, tuple(_checked(label, case, values)))
            append(_path(label, folder), line)
            known[line.question] = line.values
            done()
    return known


def kept_values(label: Label, folder: Path) -> Values:
    """Return the label's values stored in `folder`, by question id."""
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
    found: dict[int, list[float]] = {}
    running = {index: label.of(case) for index, case in enumerate(cases)}
    sent: Mapping[int, list[Continuation]] = {}
    while running:
        asked: dict[int, Sequence[Rollout]] = {}
        for index, labelling in list(running.items()):
            reply: Any = sent.get(index)  # None starts a generator
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
    },
    wanted=("of", "text", "writers"),
)
