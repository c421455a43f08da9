"""What a consult is worth at each position of a text: the labels that a router learns.

A label asks for rollouts by yielding them and is sent their texts, so that rollouts of many texts
run together whatever a label's own order is.
"""

from collections.abc import Generator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from edgewise.edge.base import Tokenizer
from edgewise.sampling import Sampling
from edgewise_lab.evaluation.systems import text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import is_right
from edgewise_lab.rollouts.base import Continuation, Prefix
from edgewise_lab.training.collect import Sample, Text
from edgewise_lab.training.data import Objective

Writer = Literal["edge", "cloud", "pair"]

_GREEDY = Sampling()


class Rollout(NamedTuple):
    """A rollout, and who writes it."""

    writer: Writer
    prefix: Prefix


Labelling = Generator[list[Rollout], list[Continuation], list[float]]
"""Yields rollouts, is sent what they wrote, returns a value from 0 to 1 for every token."""

Trial = Generator[list[Rollout], list[Continuation], None]
"""Yields rollouts, is sent what they wrote, raises `UsageError` where that will not do."""


class Case(NamedTuple):
    """A text, and what the edge proposed (int32[n] as a list) at each of its positions."""

    question: Question
    sample: Sample
    proposed: Sequence[int]
    tokenizer: Tokenizer
    max_tokens: int

    @property
    def mismatches(self) -> list[int]:
        """Where the edge would have written something else."""
        ids = self.sample.ids
        return [at for at, token in enumerate(self.proposed) if token != ids[at]]

    def right(
        self, writer: Writer, branches: Sequence[tuple[int, int]], sampling: Sampling
    ) -> Generator[list[Rollout], list[Continuation], list[bool]]:
        """Whether `writer` ends right after each (position, token written there)."""
        texts = yield from self.branches(writer, branches, sampling)
        return [is_right(self.question, text_of(self.tokenizer, ids)) for ids in texts]

    def branches(
        self,
        writer: Writer,
        branches: Sequence[tuple[int, int]],
        sampling: Sampling = _GREEDY,
        *,
        most: int | None = None,
    ) -> Generator[list[Rollout], list[Continuation], list[list[int]]]:
        """The answer's ids with each (position, token written there), as `writer` goes on from it.

        To the end of the answer, or with at most `most` more tokens.
        """
        texts = [[*self.sample.ids[:at], token] for at, token in branches]
        asked = [i for i, ids in enumerate(texts) if self._room(ids)]
        prompt = self.sample.prompt
        rooms = [self._room(texts[i]) for i in asked]
        if most is not None:
            rooms = [min(most, room) for room in rooms]
        written = yield [
            Rollout(writer, Prefix((*prompt, *texts[i]), room, sampling))
            for i, room in zip(asked, rooms, strict=True)
        ]
        for i, continuation in zip(asked, written, strict=True):
            texts[i] += continuation.ids
        return texts

    def _room(self, ids: Sequence[int]) -> int:
        return 0 if ids[-1] in self.tokenizer.eos_ids else max(0, self.max_tokens - len(ids))


class Label(Protocol):
    """A way to say what a consult is worth, in one round of training."""

    name: str
    """Names the file of its values."""

    described: str
    """In a few words, for the model card."""

    text: Text = "answer"
    """Which text it reads."""

    writers: frozenset[Writer] = frozenset()
    """Who writes its rollouts; the pair is that under the router of the round before."""

    objective: Objective = "cross-entropy"
    """What a router is fitted to."""

    hidden: int = 64
    """Width of the router's hidden layer where nobody says; 0 is none."""

    options: tuple[str, ...] = ()
    """What `rounds` takes."""

    @classmethod
    def rounds(cls, **options: Any) -> "list[Label]":
        """The label of each round of training, in order. Raises `UsageError` for a bad option."""
        return [cls(**options)]

    def trial(self, tokenizer: Tokenizer) -> Trial:
        """Run before the first text: whether its writers can do what it needs of them."""
        yield from ()

    def of(self, case: Case) -> Labelling:
        """The values of one text."""
        ...
