"""Whole answers by the cloud: a share of the questions, those whose answer is least sure."""

import threading
from collections import deque

import numpy as np

from edgewise.errors import require

SEEN, FEW, MOST = 128, 8, 4.0
"""Answers that the least sure are told by, those before any is, and whole answers in arrears: after
a hundred easy questions not all of ten hard ones go."""


class Escalation:
    """Chooses among the answers of a pair, by the mean entropy of their first passages (nats).

    Thread-safe.
    """

    def __init__(self, share: float) -> None:
        """Raises `UsageError` for a `share` of the answers outside of 0 to 1."""
        require(0 <= share <= 1, "escalate", "from 0 to 1 (10% is 0.1)", share)
        self.share = share
        self._seen = deque[float](maxlen=SEEN)
        self._earned, self._lock = 0.0, threading.Lock()

    def wants(self, uncertainty: float) -> bool:
        """Whether an answer is to be written whole, whose first passage is so uncertain."""
        with self._lock:
            self._earned = min(self._earned + self.share, MOST)
            self._seen.append(uncertainty)
            known = self.share == 1 or len(self._seen) > FEW
            least = float(np.quantile(self._seen, 1 - self.share)) if known else np.inf
            return uncertainty >= least and self._spent()

    def rejected(self) -> bool:
        """The same, of whose first passage nothing stands."""
        with self._lock:
            return self._spent()

    def _spent(self) -> bool:
        if self._earned < 1:
            return False
        self._earned -= 1
        return True
