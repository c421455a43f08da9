"""Health of the link to the cloud: whether it works, and the latency of requests."""

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
        """Whether requests to the cloud are paused."""
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
        """Let another request test the link: the probe was not sent, or says nothing of it."""
        with self._lock:
            self._probing = False

    def failed(self, *, silent: bool = False, probe: bool = False) -> None:
        """Record that a request failed; `silent` if that took more than half of its deadline.

        The third failure in a row opens the breaker, which pauses requests. So does a single silent
        one, for 0 s: the next request is a probe. If the failed request was the `probe`, which
        tests the link after a pause, the next pause is twice as long, up to 30 s.
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
    """Latency of the requests to one cloud, shared by all answers; thread-safe.

    An answer's first requests are counted apart (`first`). Three means are exponentially weighted:
    `step`, the seconds of an edge model's step; `prefill`, the seconds per prompt token that a
    first request computed (both None before the first value); and `rejection_rate`, the share of
    completions that differed from the edge's token (0.5 at first). `timeouts` is the number of
    requests in a row that were not answered in time.
    """

    def __init__(self) -> None:
        self.step: float | None = None
        self.prefill: float | None = None
        self.rejection_rate, self.timeouts = 0.5, 0
        # Apart: for an answer's first request the engine may have to read the prompt.
        self._recent = {first: deque[float](maxlen=RECENT) for first in (False, True)}
        self._lock = threading.Lock()

    def answered(self, seconds: float, *, first: bool) -> None:
        """Record that a request took `seconds`; `first` if it was the answer's first."""
        with self._lock:
            self.timeouts = 0
            self._recent[first].append(seconds)

    def prefill_took(self, seconds: float, tokens: int) -> None:
        """Record that a first request computed `tokens` prompt ids, if 16 or more, in `seconds`."""
        if tokens >= _MANY:
            with self._lock:
                self.prefill = _smoothed(self.prefill, seconds / tokens)

    def step_took(self, seconds: float) -> None:
        """Record that the edge took `seconds` for one token."""
        with self._lock:
            self.step = _smoothed(self.step, seconds)

    def draft_judged(self, *, changed: bool) -> None:
        """Record that a completion confirmed the edge's token, or `changed` it."""
        with self._lock:
            self.rejection_rate = _smoothed(self.rejection_rate, float(changed))

    def timed_out(self, deadline: float, *, first: bool) -> None:
        """Record that a request was given up after `deadline` seconds, taken as its latency."""
        with self._lock:
            self.timeouts += 1
            self._recent[first].append(deadline)

    def quantile(self, part: float, *, first: bool = False) -> float | None:
        """Return the quantile `part` (0 to 1) of the latest latencies, in seconds.

        They are the last 16 of answers' first requests if `first` is set, else the last 16 of all
        others. None if there are fewer than 3.
        """
        with self._lock:
            recent = list(self._recent[first])
        return float(np.quantile(recent, part)) if len(recent) >= ENOUGH else None

    def patience(self, elapsed: float, *, first: bool) -> float:
        """Return how many seconds to wait for a reply before the edge drafts another token.

        The request is `elapsed` seconds old, and the answer's `first` or not; its reply is expected
        after the median latency. If that is farther off than a margin (the seconds of a draft step
        times the share of drafts rejected), a draft pays and the result is 0. Else it is the time
        until the reply would be late by this margin; 0 once it is, or before latencies are known.
        """
        if (median := self.quantile(0.5, first=first)) is None or self.step is None:
            return 0.0
        # A wait shorter than this costs less than a draft, which is in vain so often.
        margin, left = self.rejection_rate * self.step, median - elapsed
        return left + margin if abs(left) < margin else 0.0


def _smoothed(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _WEIGHT * (value - mean)
