"""Edge models and clouds slowed down to the pace of other ones."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Step
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Pace(NamedTuple):
    """`seconds` of a forward pass over `ids` ids, at some sizes; in between it is linear."""

    ids: tuple[int, ...]
    seconds: tuple[float, ...]

    def of(self, ids: int) -> float:
        """Seconds of a forward pass; in proportion beyond the largest size."""
        beyond = max(1.0, ids / self.ids[-1])
        return beyond * float(np.interp(ids, self.ids, self.seconds))

    def times(self, factor: float) -> "Pace":
        """The pace of a model slower by this factor."""
        return Pace(self.ids, tuple(factor * seconds for seconds in self.seconds))


UNPACED = Pace((1,), (0.0,))

HALF_BILLION = Pace(_SIZES, (0.029, 0.050, 0.069, 0.092, 0.144, 0.236, 0.441, 0.85))
"""Qwen2.5-0.5B in 4 bits on two cores of a server (random weights; `measured` gave it)."""


def measured(model: EdgeModel, repeats: int = 7) -> Pace:
    """The pace of a model here, after 128 ids. It needs a context of 256."""
    ids = [int(i) for i in np.random.default_rng(0).integers(10, model.tokenizer.size // 2, 256)]
    medians: list[float] = []
    with closing(model.session(Needs.HIDDEN)) as session:
        session.open(ids[:128])
        session.step()
        for size in _SIZES:
            taken: list[float] = []
            for _ in range(repeats):
                session.rewind(128)
                session.extend(ids[128 : 128 + size])
                begun = time.perf_counter()
                session.step()
                taken.append(time.perf_counter() - begun)
            medians.append(median(taken))
    return Pace(_SIZES, tuple(medians))


class PacedEdge:
    """Implements `EdgeModel`: `model` where no pass is faster than `pace`.

    `decodes` counts the passes, `positions` the ids that they were over. A session begins with
    nothing cached, whatever `model` kept of earlier ones: a prompt costs what it costs on its own.
    """

    def __init__(self, model: EdgeModel, pace: Pace) -> None:
        self.decodes = self.positions = 0
        self.pace = pace
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> "_PacedSession":
        return _PacedSession(self, self._model.session(needs, top=top))


class _PacedSession:
    def __init__(self, edge: PacedEdge, session: EdgeSession) -> None:
        self._edge, self._session = edge, session
        self._computed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def open(self, ids: Sequence[int]) -> int:
        self._computed = 0
        return self._session.open(ids)

    def step(self) -> Step:
        begun = time.monotonic()
        step = self._session.step()
        self._slow_down(begun)
        return step

    def steps(self, ids: Sequence[int]) -> Sequence[Step]:
        begun = time.monotonic()
        steps = self._session.steps(ids)
        self._slow_down(begun)
        return steps

    def _slow_down(self, begun: float) -> None:
        ids = self._session.position - self._computed
        self._computed = self._session.position
        self._edge.decodes += 1
        self._edge.positions += ids
        time.sleep(max(0.0, begun + self._edge.pace.of(ids) - time.monotonic()))

    def rewind(self, position: int) -> None:
        self._session.rewind(position)
        self._computed = min(self._computed, position)


EngineTime = Callable[[int, int], float]
"""Maps tokens written and prompt tokens computed to an engine's seconds: `EnginePace.of`."""


class EnginePace(NamedTuple):
    """Seconds until a request's first token, for each further one, for each prompt token computed.

    A reply of n tokens takes `first + (n - 1) token`, and `read` times what its prompt lacked in
    the engine's cache. Requests side by side do not slow each other down.
    """

    first: float = 0.035
    token: float = 0.027
    read: float = 0.0002

    def of(self, tokens: int, computed: int) -> float:
        """Seconds of a reply."""
        write = self.first + (tokens - 1) * self.token if tokens else 0.0
        return self.read * computed + write


class DelayedCloud(WrappedCloud):
    """Implements `CloudModel`: `cloud`, each of whose completions is held back for a `delay`.

    Faults come as they do. Consults are held back side by side, as on a way that is long.
    """

    def __init__(self, cloud: CloudModel, delay: EngineTime) -> None:
        super().__init__(cloud, self._late)
        self._delay = delay

    def _late(self, ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        late, asked = Flying(), send()
        late.add_done_callback(lambda _: asked.cancel() if late.cancelled() else None)
        asked.add_done_callback(lambda done: self._hold(done, late, len(ids)))
        return late

    def _hold(self, done: Flying, late: Flying, prompt: int) -> None:
        if done.cancelled() or done.exception() is not None:
            _settle(late, done)
            return
        completion = done.result()
        computed = prompt if completion.computed is None else completion.computed
        timer = threading.Timer(self._delay(len(completion.ids), computed), _settle, (late, done))
        timer.daemon = True
        timer.start()


def _settle(made: Flying, done: Flying) -> None:
    """Give `made` the outcome of `done`, unless nobody waits for it any more."""
    if done.cancelled() or not made.set_running_or_notify_cancel():
        made.cancel()
    elif (error := done.exception()) is not None:
        made.set_exception(error)
    else:
        made.set_result(done.result())
