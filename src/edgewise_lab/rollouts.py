"""Parallel continuation of many texts by one model, for training data and its labels."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest
from edgewise.cloud.local import LocalCloud
from edgewise.completion import Completion
from edgewise.edge.base import EdgeModel, EdgeSession, Needs
from edgewise.edge.kv import BATCH, TURN, KvSession
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.cache import LlamaSequence
from edgewise.edge.llamacpp.passes import SharedSlots
from edgewise.prompts import Prompt


class Prefix(msgspec.Struct, frozen=True):
    """Token ids that a model is to continue with at most `n` more, or until its context is full."""

    ids: tuple[int, ...]
    n: int


Continuation = tuple[int, ...]
"""Token ids that a model wrote after a prefix, with an end-of-sequence id if it wrote one."""

Done = Callable[[int, Continuation], None]
"""Gets a prefix's index and its continuation, as soon as that is complete."""

CONSULTS = 16
"""Default number of requests in flight to a cloud model that does not run in this process."""

DEADLINE = 3600.0
"""Seconds that a continuation may take: many at once on two cores take minutes each."""

WIDTH = 32
"""Default number of sessions that a model in this process decodes together."""

_CELLS = 1 << 15
"""Most ids in the KV caches of all these sessions together."""


class Rollouts:
    """A pool of at most `width` sessions in which the model `cloud` continues prefixes.

    A session that is free takes the next prefix: neighbouring prefixes mostly begin alike, so the
    session's KV cache holds part of it. In the end the caller calls `close`.
    """

    def __init__(
        self, cloud: CloudModel, width: int = CONSULTS, close: Callable[[], None] = lambda: None
    ) -> None:
        self._cloud, self._width, self.close = cloud, width, close

    def run(
        self, prefixes: Sequence[Prefix], done: Done = lambda index, continuation: None
    ) -> list[Continuation]:
        """Return one continuation for each prefix. Raises the `CloudError` of the first failure."""
        sessions = [self._cloud.open(Prompt(one.ids)) for one in prefixes[: self._width]]
        waiting, free = deque(enumerate(prefixes)), deque(sessions)
        flying: dict[Future[Completion], tuple[int, CloudSession]] = {}
        written: dict[int, Continuation] = {}
        try:
            while waiting or flying:
                while waiting and free:
                    index, prefix = waiting.popleft()
                    session = free.popleft()
                    request = ConsultRequest(prefix.ids, prefix.n, DEADLINE)
                    flying[session.ask(request)] = index, session
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    index, session = flying.pop(future)
                    written[index] = future.result().ids
                    free.append(session)
                    done(index, written[index])
        finally:
            for future in flying:
                future.cancel()
            for session in sessions:
                session.close()
        return [written[index] for index in range(len(prefixes))]


def local_rollouts(
    model: EdgeModel,
    width: int = WIDTH,
    *,
    seen: Callable[[CloudModel], CloudModel] = lambda cloud: cloud,
) -> Rollouts:
    """Return `Rollouts` whose continuations `model` writes; closing them leaves `model` open.

    llama.cpp decodes at most `width` sessions together, in a context of their own; other engines
    decode one after the other. `seen` may wrap `model`, which is used as a `CloudModel`.
    """
    beside: Any = _Beside(model, width)  # used as an `EdgeModel`
    cloud = LocalCloud(beside)
    return Rollouts(seen(cloud), beside.abilities.slots, cloud.close)


class _Beside:
    """`model` as an `EdgeModel` whose llama.cpp sessions have a context of their own."""

    def __init__(self, model: EdgeModel, width: int) -> None:
        self._model, self._slots, count = model, None, 1
        if isinstance(model, LlamaModel):
            # llama.cpp wants room for an id of each sequence in one decode.
            count = max(1, min(width, _CELLS // model.context, model.context))
            self._context = model.new_context(count)
            self._slots = SharedSlots(
                [LlamaSequence(self._context, number) for number in range(count)],
                name=model.name,
                batch=min(BATCH, model.context),
                turn=min(TURN, model.context),
            )
        self.abilities = replace(model.abilities, slots=count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> EdgeSession:
        if self._slots is None:
            return self._model.session(needs, top=top)
        beside: Any = self
        return KvSession(beside, self._slots, needs, top)

    def close(self) -> None:
        if self._slots is not None and self._slots.close():
            self._context.close()
