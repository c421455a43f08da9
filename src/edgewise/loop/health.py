"""The state of the link to a cloud model: circuit breaker, and latency of requests."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np

# Quick ones: one alone is no outage, and none of them makes a user wait.
FAILURES = 3
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds; doubled with every probe that fails


class Breaker:
    """The circuit breaker of one cloud; thread-safe.

    After failures it opens: requests are paused. After the pause one request may go, as a probe.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._failures, self._pause = 0, FIRST_PAUSE
        self._until: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether requests are paused after failures, until one succeeds (perhaps as a probe)."""
        return self._until is not None

    def allow(self) -> Literal["yes", "probe", ""]:
        """Return whether a request may go now: "yes", "probe" (this one alone, as a test) or "".

        After "probe" no other may go until `succeeded`, `failed(probe=True)` or `probe_cancelled`.
        """
        with self._lock:
            if self._until is None:
                return "yes"
            if self._probing or self._clock() < self._until:
                return ""
            self._probing = True
            return "probe"

    def succeeded(self) -> None:
        """Record that a request was answered; closes the breaker."""
        with self._lock:
            self._failures, self._pause = 0, FIRST_PAUSE
            self._until, self._probing = None, False

    def probe_cancelled(self) -> None:
        """Allow another probe: this one was not sent, or its outcome says nothing of the link."""
        with self._lock:
            self._probing = False

    def failed(self, *, silent: bool = False, probe: bool = False) -> None:
        """Record that a request failed; `silent`: it timed out, or took over half of its deadline.

        The third failure in a row opens the breaker: requests are paused for 1 s at first. One
        silent failure opens it, too, but without a pause: the next request is a probe. `probe` says
        that the failed request was a probe; the next pause is then twice as long, up to 30 s.
        """
        with self._lock:
            self._failures += 1
            if probe and self._probing:
                self._pause, self._probing = min(2 * self._pause, LONGEST_PAUSE), False
                self._until = self._clock() + self._pause
            elif self._failures >= FAILURES:
                self._until = self._clock() + self._pause
            # The worst that a user sees. The next request is a probe, for which no answer waits.
            elif silent and self._until is None:
                self._until = self._clock()


# Consults that quantiles are taken over; of fewer than three one slow one decides on the median.
RECENT, ENOUGH = 16, 3
# As TCP smooths round trips (RFC 6298).
_WEIGHT = 1 / 8
# With fewer prompt tokens computed, most of a consult's time is not theirs.
_MANY = 16


class Latency:
    """Latencies, in seconds, of all answers' requests to one cloud; thread-safe.

    `first` marks a request sent before the cloud completed any in its answer: as the prompt may
    have to be prefilled, its latency is kept apart. Three means are exponentially weighted: `step`,
    the seconds of an edge model's step; `prefill`, the seconds per prompt token of first requests
    (both None before the first value); and `rejection_rate`, the share of completions whose first
    token was not the edge's (0.5 at first). `timeouts` counts timeouts since a request was
    answered.
    """

    def __init__(self) -> None:
        self.step: float | None = None
        self.prefill: float | None = None
        self.rejection_rate, self.timeouts = 0.5, 0
        # Apart: for an answer's first request the engine may have to read the prompt.
        self._recent = {first: deque[float](maxlen=RECENT) for first in (False, True)}
        self._lock = threading.Lock()

    def answered(self, seconds: float, *, first: bool) -> None:
        """Record that a request was answered after `seconds`."""
        with self._lock:
            self.timeouts = 0
            self._recent[first].append(seconds)

    def prefill_took(self, seconds: float, tokens: int) -> None:
        """Record that a first request prefilled `tokens` ids in `seconds`; ignored below 16 ids."""
        if tokens >= _MANY:
            with self._lock:
                self.prefill = _smoothed(self.prefill, seconds / tokens)

    def step_took(self, seconds: float) -> None:
        """Record that the edge model took `seconds` for one draft token."""
        with self._lock:
            self.step = _smoothed(self.step, seconds)

    def draft_judged(self, *, changed: bool) -> None:
        """Record for `rejection_rate` whether a completion `changed` the edge's token."""
        with self._lock:
            self.rejection_rate = _smoothed(self.rejection_rate, float(changed))

    def timed_out(self, deadline: float, *, first: bool) -> None:
        """Record that a request was given up after `deadline` seconds, taken as its latency."""
        with self._lock:
            self.timeouts += 1
            self._recent[first].append(deadline)

    def quantile(self, part: float, *, first: bool = False) -> float | None:
        """Return the quantile `part` (0 to 1) of the last 16 latencies, in seconds.

        Those of first requests are taken if `first` is set, else those of all others. None if there
        are fewer than 3.
        """
        with self._lock:
            recent = list(self._recent[first])
        return float(np.quantile(recent, part)) if len(recent) >= ENOUGH else None

    def patience(self, elapsed: float, *, first: bool) -> float:
        """Return how many seconds to wait for a reply before the edge drafts another token.

        The request was sent `elapsed` seconds ago; its reply is expected at the median latency.
        From `rejection_rate` x `step` seconds before that time until as long after it, waiting
        costs less than a draft that may be rejected. Within this interval the result is the time to
        its end; outside, and before latencies are known, it is 0.
        """
        if (median := self.quantile(0.5, first=first)) is None or self.step is None:
            return 0.0
        # A wait shorter than this costs less than a draft, which is in vain so often.
        margin, left = self.rejection_rate * self.step, median - elapsed
        return left + margin if abs(left) < margin else 0.0


def _smoothed(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _WEIGHT * (value - mean)
