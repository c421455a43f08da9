"""What a consult is worth at each position of a text: the labels that a router learns.

A label asks for rollouts by yielding them and is sent their texts, so that rollouts of many
answers run together whatever a label's own order is.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError
from edgewise.evaluation.journal import append, read
from edgewise.evaluation.systems import text_of
from edgewise.evaluation.tasks.base import Question
from edgewise.evaluation.tasks.grading import is_right
from edgewise.loop.decoder import Decoder
from edgewise.rollouts.base import Continuation, Done, Prefix, Rollouts, ignore
from edgewise.sampling import Sampling
from edgewise.training.collect import Sample, Text

LabelName = Literal["mismatch", "citer", "value", "co-llm"]
Writer = Literal["edge", "cloud", "pair"]

TOGETHER = 256
"""Answers whose rollouts are collected into one call."""


class Rollout(NamedTuple):
    """A rollout, and who writes it."""

    writer: Writer
    prefix: Prefix


Labelling = Generator[list[Rollout], list[Continuation], list[float]]
"""Yields rollouts, is sent what they wrote, returns a value from 0 to 1 for every token."""


class Case(NamedTuple):
    """A text, and what the edge proposed (int32[n] as a list) at each of its positions."""

    question: Question
    answer: Sample
    proposed: Sequence[int]
    tokenizer: Tokenizer
    max_tokens: int

    @property
    def mismatches(self) -> list[int]:
        """Where the edge would have written something else."""
        ids = self.answer.ids
        return [at for at, token in enumerate(self.proposed) if token != ids[at]]

    def right(
        self, writer: Writer, branches: Sequence[tuple[int, int]], sampling: Sampling
    ) -> Generator[list[Rollout], list[Continuation], list[bool]]:
        """Whether `writer` ends right after each (position, token written there)."""
        texts = [[*self.answer.ids[:at], token] for at, token in branches]
        asked = [i for i, ids in enumerate(texts) if self._room(ids)]
        prompt = self.answer.prompt
        written = yield [
            Rollout(writer, Prefix((*prompt, *texts[i]), self._room(texts[i]), sampling))
            for i in asked
        ]
        for i, continuation in zip(asked, written, strict=True):
            texts[i] += continuation.ids
        return [is_right(self.question, text_of(self.tokenizer, ids)) for ids in texts]

    def _room(self, ids: Sequence[int]) -> int:
        return 0 if ids[-1] in self.tokenizer.eos_ids else max(0, self.max_tokens - len(ids))


class Label(Protocol):
    """A way to say what a consult is worth; `described` goes into the model card."""

    @property
    def name(self) -> str:
        """Names the file of its values."""
        ...

    @property
    def text(self) -> Text:
        """Which text it reads."""
        ...

    @property
    def described(self) -> str:
        """In a few words."""
        ...

    def of(self, case: Case) -> Labelling:
        """The values of one text."""
        ...


class Mismatch:
    """1 where the edge would have written another token than the cloud did. No rollouts.

    What R2R (arXiv 2505.21600) calls "different", before its judge.
    """

    name = "mismatch"
    text: Text = "answer"
    described = "the edge's token differs from the cloud's"

    def of(self, case: Case) -> Labelling:
        yield from ()
        return [float(token != own) for token, own in _pairs(case)]


class CoLlm(Mismatch):
    """The tokens that the deferral head of Co-LLM (arXiv 2403.03870) starts from.

    The head itself is fitted to the marginal likelihood of the cloud's answers.
    """

    name = "co-llm"
    described = "marginal likelihood of the cloud's answer under both models"


class Value:
    """P(right | the cloud's token) - P(right | the edge's token), the cloud going on from both.

    With one rollout the cloud is greedy, and its branch is its own answer, so only the edge's
    tokens are rolled out, and only where they differ; with more it draws both branches.
    """

    text: Text = "answer"

    def __init__(self, rollouts: int = 1) -> None:
        if rollouts < 1:
            raise UsageError(f"--rollouts must be 1 or more, not {rollouts}.")
        self.name = "value" if rollouts == 1 else f"value-{rollouts}"
        self.described = f"value of a consult, {rollouts} rollout(s) of the cloud a branch"
        self._rollouts = rollouts

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        at = case.mismatches
        edges = [(i, case.proposed[i]) for i in at]
        clouds = [(i, case.answer.ids[i]) for i in at]
        if self._rollouts == 1:
            if case.answer.right:
                kept = yield from case.right("cloud", edges, Sampling())
                for i, right in zip(at, kept, strict=True):
                    values[i] = float(not right)
            return values
        for draw in range(self._rollouts):
            drawn = Sampling(temperature=1.0, seed=draw)
            right = yield from case.right("cloud", [*edges, *clouds], drawn)
            for i, edge, cloud in zip(at, right[: len(at)], right[len(at) :], strict=True):
                values[i] += (cloud - edge) / self._rollouts
        return [max(0.0, value) for value in values]


class Citer:
    """CITER's preference (arXiv 2502.01976), along the reference that comes with a question.

    0 where the edge would write the reference's token, else 1 where the cloud would. Where both
    would write another, each branch is rolled out to its end, and the cloud is preferred where
    only its branch ends right. In the first round the edge goes on from both branches, in the
    second the pair under the router of the first.
    """

    text: Text = "reference"

    def __init__(self, rollouts_by: Literal["edge", "pair"] = "edge") -> None:
        self.name = f"citer-{rollouts_by}"
        self.described = f"CITER's preference, both branches rolled out by the {rollouts_by}"
        self.by: Writer = rollouts_by

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        at, ids = case.mismatches, case.answer.ids
        prompt = case.answer.prompt
        replies = yield [Rollout("cloud", Prefix((*prompt, *ids[:i]), 1)) for i in at]
        cloud = {i: reply.ids[0] for i, reply in zip(at, replies, strict=True)}
        both = [i for i in at if cloud[i] not in (ids[i], case.proposed[i])]
        branches = [(i, case.proposed[i]) for i in both] + [(i, cloud[i]) for i in both]
        right = yield from case.right(self.by, branches, Sampling())
        for i in at:
            values[i] = float(cloud[i] == ids[i])
        for i, edge, other in zip(both, right[: len(both)], right[len(both) :], strict=True):
            values[i] = float(other and not edge)
        return values


class PairRollouts:
    """Implements `Rollouts` with a decoder: the mixed policy of CITER's later rounds."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        written: list[Continuation] = []
        for index, prefix in enumerate(prefixes):
            answer = self._decoder.generate(
                prefix.ids, max_tokens=prefix.n, sampling=prefix.sampling
            )
            ids = tuple(token.id for token in answer.tokens)
            written.append(Continuation(ids, tuple(t.logprob or 0.0 for t in answer.tokens)))
            done(index, written[-1])
        return written

    def close(self) -> None:
        """The decoder holds nothing between answers."""


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
) -> dict[str, tuple[float, ...]]:
    """The values of every case by question; those that `folder` holds are not made again."""
    path = folder / f"labels-{label.name}.jsonl"
    known = {line.question: line.values for line in read(path, Labelled)}
    for _ in range(len(known)):
        done()
    fresh = iter([case for case in cases if case.question.id not in known])
    while batch := list(islice(fresh, TOGETHER)):
        for case, values in zip(batch, _together(label, batch, rollouts), strict=True):
            line = Labelled(case.question.id, tuple(values))
            append(path, line)
            known[line.question] = line.values
            done()
    return known


def _together(
    label: Label, cases: Sequence[Case], rollouts: Mapping[Writer, Rollouts]
) -> list[list[float]]:
    """Advance all labellings side by side, their rollouts pooled by writer."""
    found: dict[int, list[float]] = {}
    running = {index: label.of(case) for index, case in enumerate(cases)}
    replies: dict[int, Iterator[Continuation]] = {}
    waiting: dict[int, list[Rollout]] = {}
    while running:
        for index, labelling in list(running.items()):
            try:
                if index in waiting:
                    sent = [next(replies[index]) for _ in waiting[index]]
                    waiting[index] = labelling.send(sent)
                else:
                    waiting[index] = next(labelling)
            except StopIteration as stop:
                found[index] = stop.value
                del running[index]
                waiting.pop(index, None)
        replies = _answered(waiting, rollouts)
    return [found[index] for index in range(len(cases))]


def _answered(
    waiting: Mapping[int, Sequence[Rollout]], rollouts: Mapping[Writer, Rollouts]
) -> dict[int, Iterator[Continuation]]:
    pooled: dict[Writer, list[Prefix]] = {}
    for asks in waiting.values():
        for ask in asks:
            pooled.setdefault(ask.writer, []).append(ask.prefix)
    written = {writer: iter(rollouts[writer].run(asked)) for writer, asked in pooled.items()}
    return {
        index: iter([next(written[ask.writer]) for ask in asks]) for index, asks in waiting.items()
    }


def _pairs(case: Case) -> Iterator[tuple[int, int]]:
    return zip(case.proposed, case.answer.ids, strict=True)
