"""How long consults take, and how often they change the token: averages and recent quantiles."""

import threading
from collections import deque

import numpy as np

from edgewise.loop.redraft import Redrafts

RECENT = 16
"""Consults that quantiles are taken over."""

ENOUGH = 3
"""Consults before a median says anything."""

_WEIGHT = 1 / 8
_MANY = 16


class Latency:
    """Shared by all answers of a decoder; may be read and told from any thread.

    An answer's first consults are counted apart (`first`): the engine may have to read the prompt.
    `round_trip` and `engine` are exponentially weighted means in seconds (weight 1/8, as TCP's
    smoothed round-trip time, RFC 6298), None before the first answer or where no engine says its
    own time; `step` of the edge's own steps, and `changed` of whether a completion differed
    from the edge's token (a half before the first); `reading` is seconds for each prompt token that
    a first consult had computed. `timeouts` is how many consults in a row were not
    answered in time; `redrafts` what was gained by drafts.
    """

    def __init__(self) -> None:
        self.round_trip: float | None = None
        self.engine: float | None = None
        self.step: float | None = None
        self.changed = 0.5
        self.reading: float | None = None
        self.timeouts = 0
        self.redrafts = Redrafts()
        self._recent = {first: deque[float](maxlen=RECENT) for first in (False, True)}
        self._lock = threading.Lock()

    def answered(self, seconds: float, engine_seconds: float | None, *, first: bool) -> None:
        """A consult took `seconds`, of which the engine says that `engine_seconds` were its own."""
        with self._lock:
            self.timeouts = 0
            self._recent[first].append(seconds)
            if engine_seconds is not None:
                self.engine = _smoothed(self.engine, engine_seconds)
            if not first:
                trip = max(0.0, seconds - (engine_seconds or 0.0))
                self.round_trip = _smoothed(self.round_trip, trip)

    def read(self, seconds: float, tokens: int) -> None:
        """An answer's first consult took `seconds`, and the cloud computed so many prompt tokens.

        Where few are computed most of the time is not theirs, so it says nothing.
        """
        if tokens >= _MANY:
            with self._lock:
                self.reading = _smoothed(self.reading, seconds / tokens)

    def stepped(self, seconds: float) -> None:
        """The edge took `seconds` for one token."""
        with self._lock:
            self.step = _smoothed(self.step, seconds)

    def judged(self, *, changed: bool) -> None:
        """A completion confirmed the edge's token, or changed it."""
        with self._lock:
            self.changed = _smoothed(self.changed, float(changed))

    def timed_out(self, deadline: float, *, first: bool) -> None:
        """A consult was given up after `deadline` seconds: it would have taken at least those."""
        with self._lock:
            self.timeouts += 1
            self._recent[first].append(deadline)

    def quantile(self, part: float, *, first: bool = False) -> float | None:
        """That quantile of the recent consults, seconds; None before there are enough."""
        with self._lock:
            recent = list(self._recent[first])
        return float(np.quantile(recent, part)) if len(recent) >= ENOUGH else None


def _smoothed(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _WEIGHT * (value - mean)
