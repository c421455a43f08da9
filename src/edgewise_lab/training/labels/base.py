"""Training labels: how much a request to the cloud would help, at every token of a text."""

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

Writer = Literal["edge", "cloud"]


class Rollout(NamedTuple):
    """A request to the edge or cloud model to continue `prefix`; a `Continuation` answers it."""

    writer: Writer
    prefix: Prefix


Labelling = Generator[list[Rollout], list[Continuation], list[float]]
"""Generator that labels one text.

It yields lists of rollouts, is sent their continuations in the same order, and returns a value from
0 to 1 for every token of the text.
"""


class Case(NamedTuple):
    """A text to label, and the edge model's likeliest next token at each of its positions.

    The text is `sample.ids`; `proposed` has an id for each of its tokens. `max_tokens` is the
    maximum length of a whole answer that begins like the text, including that beginning.
    """

    question: Question
    sample: Sample
    proposed: Sequence[int]
    tokenizer: Tokenizer
    max_tokens: int

    @property
    def mismatches(self) -> list[int]:
        """Indices into the text's ids where the edge model would have written another token."""
        ids = self.sample.ids
        return [at for at, token in enumerate(self.proposed) if token != ids[at]]

    def right(
        self, writer: Writer, branches: Sequence[tuple[int, int]]
    ) -> Generator[list[Rollout], list[Continuation], list[bool]]:
        """Like `branches`, but return for each (position, token) whether its answer is right."""
        texts = yield from self.branches(writer, branches)
        return [is_right(self.question, text_of(self.tokenizer, ids)) for ids in texts]

    def branches(
        self, writer: Writer, branches: Sequence[tuple[int, int]]
    ) -> Generator[list[Rollout], list[Continuation], list[list[int]]]:
        """Return the ids of one whole answer for each (position, token) in `branches`.

        Each consists of the text's ids before the position (an index), the token, and, unless that
        ends the answer, what `writer` continues with. A generator: `yield from` it in `Label.of`.
        """
        texts = [[*self.sample.ids[:at], token] for at, token in branches]
        asked = [i for i, ids in enumerate(texts) if self._room(ids)]
        prompt = self.sample.prompt
        rooms = [self._room(texts[i]) for i in asked]
        written = yield [
            Rollout(writer, Prefix((*prompt, *texts[i]), room))
            for i, room in zip(asked, rooms, strict=True)
        ]
        for i, continuation in zip(asked, written, strict=True):
            texts[i] += continuation
        return texts

    def _room(self, ids: Sequence[int]) -> int:
        return 0 if ids[-1] in self.tokenizer.eos_ids else max(0, self.max_tokens - len(ids))


class Label(Protocol):
    """Protocol of labels, which say for every token of a text how much the cloud would help there.

    A label is a class that is created without arguments.
    """

    name: str
    """Name of the label; its values are kept in `labels-NAME.jsonl`."""

    described: str
    """Description in a few words, for the router's model card."""

    text: Text = "answer"
    """Which texts are labelled: the cloud model's answers, or the edge model's own."""

    writers: frozenset[Writer] = frozenset()
    """The models that `of` may ask to write rollouts."""

    def of(self, case: Case) -> Labelling:
        """Return a generator that asks for rollouts and returns a value (0 to 1) for each token."""
        ...


TOGETHER = 16
"""Number of texts labelled together: their rollouts are pooled, then all values are stored."""

Values = dict[str, tuple[float, ...]]
"""Maps a question's id to the values of its text, one for every token."""


class Labelled(msgspec.Struct, frozen=True):
    """One line of a label's file: the values of the text that answers `question` (an id)."""

    question: str
    values: tuple[float, ...]


def label_all(
    label: Label,
    cases: Sequence[Case],
    rollouts: Mapping[Writer, Rollouts],
    folder: Path,
    begin: Callable[[int], Callable[[], None]] = lambda left: lambda: None,
) -> Values:
    """Return the label's values by question id, one for each token of the question's text.

    All that `folder` stores are returned; those of `cases` that it lacks are computed and stored.
    `rollouts` has an entry for each model ("edge", "cloud") in `label.writers`, to continue texts
    with. `begin` gets the number of cases to compute; what it returns is called after each of them.
    Raises `UsageError` where the label returns invalid values or asks for a model that is not in
    `label.writers`, and a `CloudError` where a model fails.
    """
    path = _path(label, folder)
    known = kept_values(label, folder)
    fresh = [case for case in cases if case.question.id not in known]
    done = begin(len(fresh))
    waiting = iter(fresh)
    while batch := list(islice(waiting, TOGETHER)):
        for case, values in zip(batch, _together(label, batch, rollouts), strict=True):
            line = Labelled(case.question.id, tuple(_checked(label, case, values)))
            append(path, line)
            known[line.question] = line.values
            done()
    return known


def kept_values(label: Label, folder: Path) -> Values:
    """Return the label's values stored in `folder`, by question id; empty if there are none."""
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
"""Registry of labels; packages may add others."""
