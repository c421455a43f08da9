"""Edge and cloud models slowed down to the speed of slower machines."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np

from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Step

Result = TypeVar("Result")

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Pace(NamedTuple):
    """How long a model's forward pass takes: `seconds[i]` for one over `ids[i]` ids, ascending."""

    ids: tuple[int, ...]
    seconds: tuple[float, ...]

    def of(self, ids: int) -> float:
        """Return a pass's seconds for `ids` ids: interpolated, beyond the last in proportion."""
        beyond = max(1.0, ids / self.ids[-1])
        return beyond * float(np.interp(ids, self.ids, self.seconds))


UNPACED = Pace((1,), (0.0,))

HALF_BILLION = Pace(_SIZES, (0.029, 0.050, 0.069, 0.092, 0.144, 0.236, 0.441, 0.85))
"""Qwen2.5-0.5B in 4 bits on two cores of a server (random weights; `measured` gave it)."""


def measured(model: EdgeModel, repeats: int = 7) -> Pace:
    """Return a model's pace on this machine: medians of `repeats` passes at each size up to 128.

    Each pass begins with 128 ids in the KV cache. Raises `UsageError` if the context is below 256
    ids, or if the engine gives no hidden states.
    """
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
    """An `EdgeModel` that delegates to `model`, slowed so that no pass is faster than `pace`.

    `decodes` counts forward passes, `positions` the ids in them. An answer's prompt counts in full,
    even if `model` has a part of it in its KV cache.
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
        return self._slowly(self._session.step)

    def steps(self, ids: Sequence[int]) -> Sequence[Step]:
        return self._slowly(partial(self._session.steps, ids))

    def _slowly(self, run: Callable[[], Result]) -> Result:
        begun = time.monotonic()
        made = run()
        ids = self._session.position - self._computed
        self._computed = self._session.position
        self._edge.decodes += 1
        self._edge.positions += ids
        time.sleep(max(0.0, begun + self._edge.pace.of(ids) - time.monotonic()))
        return made

    def rewind(self, position: int) -> None:
        self._session.rewind(position)
        self._computed = min(self._computed, position)


class EnginePace(NamedTuple):
    """Speed of a cloud engine, in seconds.

    A reply takes `first` for its first token, `token` for each further one, and `read` for each
    prompt token that is not in the engine's cache. Parallel requests do not slow each other down.
    """

    first: float = 0.035
    token: float = 0.027
    read: float = 0.0002

    def of(self, tokens: int, computed: int) -> float:
        """Return the seconds of a reply of `tokens` tokens to `computed` uncached prompt tokens."""
        write = self.first + (tokens - 1) * self.token if tokens else 0.0
        return self.read * computed + write
