"""What was guessed behind a token that the cloud changed, read again behind the cloud's own.

One pass over several ids takes less than as many passes, by how much depends on the device; and how
often such a draft is right depends on the answers. So whether it pays is measured as it is used.
"""

import threading
from typing import NamedTuple

_WEIGHT = 1 / 8
_AGAIN = 8


class Redraft(NamedTuple):
    """A draft for what follows the ids from position `start` on, which no pass has read yet."""

    start: int
    draft: list[int]

    def behind(self, token: int) -> "Redraft | None":
        """What is left where the answer goes on with `token`."""
        right = bool(self.draft) and self.draft[0] == token
        return Redraft(self.start, self.draft[1:]) if right else None


class Redrafts:
    """What they gained so far, and whether they are exact. May be told from any thread.

    `gain` is an exponentially weighted mean of seconds gained (None before the first). `exact` says
    whether passes over several ids gave bit for bit what passes over one did; None: not known yet.
    """

    def __init__(self) -> None:
        self.gain: float | None = None
        self.exact: bool | None = None
        self._largest = 0
        self._declined = 0
        self._lock = threading.Lock()

    def pays(self) -> bool:
        """Whether to redraft now: where that gained, or where it is time to try again."""
        with self._lock:
            if self.gain is None or self.gain > 0:
                return True
            self._declined = (self._declined + 1) % _AGAIN
            return not self._declined

    def gained(self, seconds: float) -> None:
        """One gained so many seconds, less than none where it lost them."""
        with self._lock:
            before = seconds if self.gain is None else self.gain
            self.gain = before + _WEIGHT * (seconds - before)

    def proven(self, size: int) -> bool:
        """Whether passes over `size` ids are known to be exact: as large a one was compared."""
        with self._lock:
            return bool(self.exact) and size <= self._largest

    def compared(self, size: int, *, same: bool) -> None:
        """A pass over `size` ids was compared with passes over one: the same bits, or not."""
        with self._lock:
            self.exact = same and self.exact is not False
            self._largest = max(size, self._largest)
