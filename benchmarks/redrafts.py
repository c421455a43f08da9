"""What was guessed behind a token that the cloud changed, read again behind the cloud's own.

One pass over several ids takes less than as many passes, by how much depends on the device; and how
often such a draft is right depends on the answers. So whether it pays is measured as it is used.
"""

import math
import threading
from collections import defaultdict
from typing import NamedTuple

_WEIGHT = 1 / 8
_AGAIN = 32
_LEAST = 2.0**-16


class Redraft(NamedTuple):
    """A draft for what follows the ids from position `start` on, which no pass has read yet.

    `score` is that of the token there, which the cloud changed.
    """

    start: int
    draft: list[int]
    score: float

    def behind(self, token: int) -> "Redraft | None":
        """What is left where the answer goes on with `token`."""
        right = bool(self.draft) and self.draft[0] == token
        return self._replace(draft=self.draft[1:]) if right else None


class Redrafts:
    """What they gained so far, and whether they are exact. May be told from any thread.

    A cloud that is asked where the router is sure of it changes other tokens than one that is asked
    on a suspicion, so gains are kept apart by the score. `exact` says whether passes over several
    ids gave bit for bit what passes over one did; None: not known yet.
    """

    def __init__(self) -> None:
        self.exact: bool | None = None
        self._gains = defaultdict[int, _Gain](_Gain)
        self._largest = 0
        self._lock = threading.Lock()

    @property
    def made(self) -> int:
        """How many there were."""
        with self._lock:
            return sum(gain.count for gain in self._gains.values())

    def pays(self, score: float) -> bool:
        """Whether to redraft behind a token of this score, which the cloud changed.

        Where that gained, or where it is time to try again.
        """
        with self._lock:
            return self._gains[_octave(score)].pays()

    def gained(self, score: float, seconds: float, step: float) -> None:
        """One gained so many seconds, less than none where it lost them; `step`: of the edge's."""
        with self._lock:
            self._gains[_octave(score)].add(seconds, step)

    def proven(self, size: int) -> bool:
        """Whether passes over `size` ids are known to be exact: as large a one was compared."""
        with self._lock:
            return bool(self.exact) and size <= self._largest

    def compared(self, size: int, *, same: bool) -> None:
        """A pass over `size` ids was compared with passes over one: the same bits, or not."""
        with self._lock:
            self.exact = same and self.exact is not False
            self._largest = max(size, self._largest)


class _Gain:
    """Mean of seconds gained: of all at first, exponentially weighted from then on.

    It begins with a step, as if one had gained that: where drafts cost little many are tried before
    they are given up, where they cost much few.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = 0.0
        self._declined = 0

    def add(self, seconds: float, step: float) -> None:
        if not self.count:
            self._mean = step
        self.count += 1
        self._mean += max(_WEIGHT, 1 / (self.count + 1)) * (seconds - self._mean)

    def pays(self) -> bool:
        if not self.count or self._mean > 0:
            return True
        self._declined = (self._declined + 1) % _AGAIN
        return not self._declined


def _octave(score: float) -> int:
    """Scores are told apart by factors of two."""
    return math.frexp(max(score, _LEAST))[1]
