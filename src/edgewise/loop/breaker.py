"""A circuit breaker: failures in a row pause the consults, single probes find the way back."""

import threading
import time
from collections.abc import Callable

FAILURES = 3
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds; a pause doubles with every probe that fails."""


class Breaker:
    """Closed: consults go. Open: none goes. Half open: one goes, and its outcome decides.

    Shared by all answers of a decoder or a server; may be asked and told from any thread.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._until: float | None = None
        self._probing = False
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether consults are paused."""
        return self._until is not None

    def allow(self) -> bool:
        """Whether a consult may go now; in a pause's end, for one probe only."""
        with self._lock:
            if self._until is None:
                return True
            if self._probing or self._clock() < self._until:
                return False
            self._probing = True
            return True

    def succeeded(self) -> None:
        """A consult was answered."""
        with self._lock:
            self._failures = 0
            self._pause = FIRST_PAUSE
            self._until = None
            self._probing = False

    def forgone(self) -> None:
        """A consult that was allowed was not made after all."""
        with self._lock:
            self._probing = False

    def failed(self, *, silent: bool = False) -> None:
        """A consult was not answered; `silent` where the answer waited for it in vain.

        Such a wait is the worst a user sees, so one is enough to open; a probe may go at once.
        """
        with self._lock:
            self._failures += 1
            if self._probing:
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
            if self._probing or self._failures >= FAILURES:
                self._until = self._clock() + self._pause
            elif silent and self._until is None:
                self._until = self._clock()
            self._probing = False
