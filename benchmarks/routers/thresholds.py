"""Thresholds that realise a share, found by halving."""

from collections.abc import Generator, Sequence

import numpy as np

ROUNDS = 12
SETTLED = 0.01
"""A realised share this close to the one asked for (relative) is taken."""

Search = Generator[float, float, float]
"""Yields a threshold, is sent the share that it realised; returns the best threshold."""


def search(share: float, scores: Sequence[float]) -> Search:
    """Among the scores of the edge's own answers, the one that comes closest to `share`.

    Scores drift once the cloud has written into an answer, so the answers decide. More are
    consulted where the threshold is lower: the place in the sorted scores is what is halved.
    """
    places = np.unique(np.asarray(scores))[::-1]
    begun = float(np.quantile(scores, 1 - share, method="lower"))
    at = int(np.clip(np.searchsorted(-places, -begun), 0, len(places) - 1))
    low, high = -1, len(places)
    best = (share, 2.0)
    for _ in range(ROUNDS):
        realised = yield float(places[at])
        best = min(best, (abs(realised - share), float(places[at])))
        if best[0] <= SETTLED * share:
            break
        low, high = (low, at) if realised > share else (at, high)
        if high - low <= 1:
            break
        at = _next(at, low, high, len(places), share / max(realised, 1e-9))
    return best[1]


def _next(at: int, low: int, high: int, count: int, factor: float) -> int:
    """Between `low` and `high`; by rule of three where one of them is no measurement yet."""
    if low < 0 or high == count:
        guess = int((at + 1) * min(4.0, max(0.25, factor))) - 1
        return int(np.clip(guess, low + 1, high - 1))
    return (low + high) // 2
