"""Many continuations of many prefixes: what labels and references are made from."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from edgewise.edge.base import EdgeModel, Needs
from edgewise.events import Candidate
from edgewise.sampling import Sampling


class Prefix(msgspec.Struct, frozen=True):
    """Ids to go on from, with at most `n` more, and no more than the context has room for."""

    ids: tuple[int, ...]
    n: int
    sampling: Sampling = Sampling()


class Continuation(msgspec.Struct, frozen=True):
    """What a model wrote, its end token included, each id with its logprob (nats).

    None, and no `top`, the likeliest ids for each, where an engine did not tell them.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[tuple[Candidate, ...], ...] = ()


Done = Callable[[int, Continuation], None]
"""Told a prefix's index and continuation as soon as that ends."""


def ignore(index: int, continuation: Continuation) -> None:
    """A `Done` for those who wait for all."""


class Rollouts(Protocol):
    """A model that continues prefixes, as many at a time as suits it."""

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        """One continuation a prefix, in their order."""
        ...

    def close(self) -> None:
        """Give back what the rollouts hold; the model stays open."""
        ...


class OneByOne:
    """Implements `Rollouts` over any `EdgeModel`, one prefix after the other."""

    def __init__(self, model: EdgeModel) -> None:
        self._context, self._eos_ids = model.context, model.tokenizer.eos_ids
        self._session = model.session(Needs.ENTROPY | Needs.LOGITS)

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        written: list[Continuation] = []
        for index, prefix in enumerate(prefixes):
            written.append(self._continue(prefix))
            done(index, written[-1])
        return written

    def close(self) -> None:
        self._session.close()

    def _continue(self, prefix: Prefix) -> Continuation:
        ids: list[int] = []
        logprobs: list[float] = []
        self._session.open(prefix.ids)
        # Nothing is computed after the last id, which may stand behind the context.
        room = min(prefix.n, self._context - len(prefix.ids) + 1)
        while len(ids) < room and not (ids and ids[-1] in self._eos_ids):
            self._session.extend(ids[-1:])
            step = self._session.step()
            ids.append(prefix.sampling.choose(step))
            logprobs.append(step.logprob(ids[-1]))
        return Continuation(tuple(ids), tuple(logprobs))
