"""Health of the link to the cloud: whether it works, and the latency of consults."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np

FAILURES = 3
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds; a pause doubles with every probe that fails."""


class Breaker:
    """The circuit breaker of a decoder, thread-safe. Half open, one probe goes."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._failures, self._pause = 0, FIRST_PAUSE
        self._until: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether consults are paused."""
        return self._until is not None

    def allow(self) -> Literal["yes", "probe", ""]:
        """Whether a consult may go now; when a pause is over, one may, as the probe."""
        with self._lock:
            if self._until is None:
                return "yes"
            if self._probing or self._clock() < self._until:
                return ""
            self._probing = True
            return "probe"

    def succeeded(self) -> None:
        """A consult was answered."""
        with self._lock:
            self._failures, self._pause = 0, FIRST_PAUSE
            self._until, self._probing = None, False

    def probe_cancelled(self) -> None:
        """The probe that was allowed was not made after all, or says nothing of the link."""
        with self._lock:
            self._probing = False

    def failed(self, *, silent: bool = False, probe: bool = False) -> None:
        """A consult failed; `silent` where the answer waited for it until its deadline.

        Such a wait is the worst a user sees, so one opens the breaker; a probe may go at once. Only
        the `probe` itself ends that and doubles the pause: others were sent before it.
        """
        with self._lock:
            self._failures += 1
            if probe and self._probing:
                self._pause, self._probing = min(2 * self._pause, LONGEST_PAUSE), False
                self._until = self._clock() + self._pause
            elif self._failures >= FAILURES:
                self._until = self._clock() + self._pause
            elif silent and self._until is None:
                self._until = self._clock()


RECENT, ENOUGH = 16, 3
"""Consults that quantiles are taken over, and before they say anything."""

_WEIGHT = 1 / 8
# With fewer prompt tokens computed, most of a consult's time is not theirs.
_MANY = 16


class Latency:
    """Latency of consults, shared by all answers of a decoder; thread-safe.

    An answer's first consults are counted apart (`first`): the engine may have to read the prompt.
    All means are exponentially weighted (weight 1/8, as TCP's smoothed round-trip time, RFC 6298)
    and None before the first value. Seconds: `step` a step of the edge, `prefill` a prompt token
    that a first consult computed. `rejection_rate` is the part of completions that differed from
    the edge's token (at first a half), `timeouts` counts consults in a row that were not answered
    in time.
    """

    def __init__(self) -> None:
        self.step: float | None = None
        self.prefill: float | None = None
        self.rejection_rate, self.timeouts = 0.5, 0
        self._recent = {first: deque[float](maxlen=RECENT) for first in (False, True)}
        self._lock = threading.Lock()

    def answered(self, seconds: float, *, first: bool) -> None:
        """A consult took `seconds`."""
        with self._lock:
            self.timeouts = 0
            self._recent[first].append(seconds)

    def prefill_took(self, seconds: float, tokens: int) -> None:
        """An answer's first consult took `seconds`, and the cloud computed so many tokens."""
        if tokens >= _MANY:
            with self._lock:
                self.prefill = _smoothed(self.prefill, seconds / tokens)

    def step_took(self, seconds: float) -> None:
        """The edge took `seconds` for one token."""
        with self._lock:
            self.step = _smoothed(self.step, seconds)

    def draft_judged(self, *, changed: bool) -> None:
        """A completion confirmed the edge's token, or changed it."""
        with self._lock:
            self.rejection_rate = _smoothed(self.rejection_rate, float(changed))

    def timed_out(self, deadline: float, *, first: bool) -> None:
        """A consult was given up after `deadline` seconds: it would have taken at least those."""
        with self._lock:
            self.timeouts += 1
            self._recent[first].append(deadline)

    def quantile(self, part: float, *, first: bool = False) -> float | None:
        """A quantile of the recent consults, seconds; None before there are enough."""
        with self._lock:
            recent = list(self._recent[first])
        return float(np.quantile(recent, part)) if len(recent) >= ENOUGH else None

    def patience(self, elapsed: float, *, first: bool) -> float:
        """Seconds to wait for a consult, `elapsed` seconds old, before another draft is computed.

        0 unless its completion is about to arrive. With r seconds to go, a step of s seconds gains
        r if the draft is accepted and loses s - r if it is rejected, as a part d of them is: it
        pays if r > d s. A completion that is overdue by as much is not waited for.
        """
        median = self.quantile(0.5, first=first)
        if median is None or self.step is None:
            return 0.0
        margin, left = self.rejection_rate * self.step, median - elapsed
        return left + margin if abs(left) < margin else 0.0


def _smoothed(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _WEIGHT * (value - mean)
