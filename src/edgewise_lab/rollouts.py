"""Many continuations of many prefixes: what labels and references are made from."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol

import msgspec

from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest
from edgewise.completion import Completion
from edgewise.edge.base import EdgeModel, Step
from edgewise.edge.vocabulary import common_prefix
from edgewise.errors import ContextOverflow
from edgewise.prompts import Prompt
from edgewise_lab.sequences import Chunk, Sequences, sequences_of


class Prefix(msgspec.Struct, frozen=True):
    """Ids to go on from, with at most `n` more, and no more than the context has room for."""

    ids: tuple[int, ...]
    n: int


class Continuation(msgspec.Struct, frozen=True):
    """Tokens that a model wrote, its end token included."""

    ids: tuple[int, ...]


Done = Callable[[int, Continuation], None]
"""Called with a prefix's index and continuation as soon as that ends."""


def ignore(index: int, continuation: Continuation) -> None:
    """A `Done` for those who wait for all."""


class Rollouts(Protocol):
    """A model that continues prefixes, as many at a time as suits it."""

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        """Returns one continuation for each prefix, in their order."""
        ...

    def close(self) -> None:
        """Give back what the rollouts hold; the model stays open."""
        ...


class SequentialRollouts:
    """Implements `Rollouts` over any `EdgeModel`, one prefix after the other."""

    def __init__(self, model: EdgeModel) -> None:
        self._context, self._eos_ids = model.context, model.tokenizer.eos_ids
        self._session = model.session()

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
        self._session.open(prefix.ids)
        # Nothing is computed after the last id, which may lie beyond the context.
        room = min(prefix.n, self._context - len(prefix.ids) + 1)
        while len(ids) < room and not (ids and ids[-1] in self._eos_ids):
            self._session.extend(ids[-1:])
            ids.append(self._session.step().proposed)
        return Continuation(tuple(ids))


CONSULTS = 16
"""Consults in flight; an engine decodes them together."""

DEADLINE = 300.0
"""Seconds that a whole continuation may take."""


class CloudRollouts:
    """Implements `Rollouts` with a session a prefix.

    Raises the `CloudError` of the first failure.
    """

    def __init__(
        self, cloud: CloudModel, width: int = CONSULTS, deadline: float = DEADLINE
    ) -> None:
        self._cloud = cloud
        self._width = width
        self._deadline = deadline

    def close(self) -> None:
        """Sessions end with their consults."""

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        flying: dict[Future[Completion], tuple[int, CloudSession]] = {}
        written: dict[int, Continuation] = {}
        waiting = list(enumerate(prefixes))[::-1]
        try:
            while waiting or flying:
                while waiting and len(flying) < self._width:
                    index, prefix = waiting.pop()
                    session = self._cloud.open(Prompt(prefix.ids))
                    flying[self._ask(session, prefix)] = index, session
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    index, session = flying.pop(future)
                    session.close()
                    written[index] = Continuation(future.result().ids)
                    done(index, written[index])
        finally:
            for future, (_, session) in flying.items():
                future.cancel()
                session.close()
        return [written[index] for index in range(len(prefixes))]

    def _ask(self, session: CloudSession, prefix: Prefix) -> Future[Completion]:
        return session.ask(ConsultRequest(prefix.ids, prefix.n, self._deadline))


class BatchedRollouts:
    """Implements `Rollouts` over a model's `Sequences`, which `close` frees.

    Neighbouring prefixes that begin alike run one after the other in one sequence, which computes
    only what it does not hold yet.
    """

    def __init__(self, model: EdgeModel, sequences: Sequences) -> None:
        self._context, self._eos_ids = model.context, model.tokenizer.eos_ids
        self._sequences = sequences
        self._held: list[list[int]] = [[] for _ in range(sequences.width)]

    def close(self) -> None:
        self._sequences.close()

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        """Raises `ContextOverflow` for a prefix that does not fit."""
        for prefix in prefixes:
            self._check(prefix)
        waiting = self._shared_out(prefixes)
        running: dict[int, _Rollout] = {}
        written: dict[int, Continuation] = {}
        while len(written) < len(prefixes):
            for at, queue in enumerate(waiting):
                if at not in running and (queue or (queue := max(waiting, key=len))):
                    running[at] = self._begin(at, *queue.popleft())
            for at in self._decode(running):
                ended = running.pop(at)
                written[ended.index] = ended.continuation
                done(ended.index, ended.continuation)
        return [written[index] for index in range(len(prefixes))]

    def _check(self, prefix: Prefix) -> None:
        if len(prefix.ids) > self._context:
            raise ContextOverflow(
                f"{len(prefix.ids)} tokens do not fit in the context of {self._context}",
                hint="raise the context",
                setting="ctx",
            )

    def _shared_out(self, prefixes: Sequence[Prefix]) -> list[deque[tuple[int, Prefix]]]:
        """A queue of neighbours for each sequence; one that runs out takes from the longest."""
        width = self._sequences.width
        queues: list[deque[tuple[int, Prefix]]] = [deque() for _ in range(width)]
        for index, prefix in enumerate(prefixes):
            queues[index * width // len(prefixes)].append((index, prefix))
        return queues

    def _begin(self, at: int, index: int, prefix: Prefix) -> "_Rollout":
        held = self._held[at]
        # The last id is computed anew: its logits are wanted.
        shared = min(common_prefix(held, prefix.ids), len(prefix.ids) - 1)
        if shared < len(held):
            shared = self._sequences.forget(at, shared)
            del held[shared:]
        return _Rollout(index, prefix, shared)

    def _decode(self, running: "dict[int, _Rollout]") -> list[int]:
        """Runs one pass over what is due; returns the sequences that have ended."""
        room = self._sequences.max_batch_ids
        chunks: list[Chunk] = []
        for at, rollout in running.items():
            due = rollout.ids[rollout.computed :][:room]
            if due:
                end = rollout.computed + len(due)
                chunks.append(Chunk(at, rollout.computed, due, end == len(rollout.ids)))
                room -= len(due)
        steps = iter(self._sequences.run(chunks))
        ended: list[int] = []
        for at, _, ids, output in chunks:
            self._held[at] += ids
            running[at].computed += len(ids)
            if output and self._write(running[at], next(steps)):
                ended.append(at)
        return ended

    def _write(self, rollout: "_Rollout", step: Step) -> bool:
        """Choose the next id; whether the rollout has ended."""
        token = step.proposed
        rollout.ids.append(token)
        # Nothing is computed after the last id, which may lie beyond the context.
        full = len(rollout.written) == rollout.prefix.n or len(rollout.ids) > self._context
        return full or token in self._eos_ids


class _Rollout:
    """A prefix, and what has been computed and written of it."""

    def __init__(self, index: int, prefix: Prefix, computed: int) -> None:
        self.index = index
        self.prefix = prefix
        self.ids = list(prefix.ids)
        self.computed = computed

    @property
    def written(self) -> list[int]:
        return self.ids[len(self.prefix.ids) :]

    @property
    def continuation(self) -> Continuation:
        return Continuation(tuple(self.written))


WIDTH = 32
"""Sequences that are decoded together."""


def edge_rollouts(edge: EdgeModel, width: int = WIDTH) -> Rollouts:
    """Many continuations by the edge model, `width` at a time where its engine can do that."""
    sequences = sequences_of(edge, width)
    return SequentialRollouts(edge) if sequences is None else BatchedRollouts(edge, sequences)


def cloud_rollouts(cloud: CloudModel) -> Rollouts:
    """Many continuations by the cloud model at a time, in this process or behind its engine."""
    return CloudRollouts(cloud) if cloud.local is None else edge_rollouts(cloud.local)
