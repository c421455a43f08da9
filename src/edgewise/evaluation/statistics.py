"""Intervals: paired bootstrap over questions, 10,000 resamples, 95 %."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000


def difference_interval(
    better: Sequence[bool], worse: Sequence[bool], *, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of mean(better) - mean(worse), both over the same questions."""
    difference = np.asarray(better, np.float64) - np.asarray(worse, np.float64)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(difference), (RESAMPLES, len(difference)))
    low, high = np.quantile(difference[picks].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)
