"""Intervals: paired bootstrap over questions, 10,000 resamples, 95 %."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000

Interval = tuple[float, float]


def mean_interval(right: Sequence[bool], *, seed: int = 0) -> Interval:
    """The 95 % interval of an accuracy."""
    return _interval(_resampled_means([right], np.random.default_rng(seed))[:, 0])


def difference_interval(
    better: Sequence[bool], worse: Sequence[bool], *, seed: int = 0
) -> Interval:
    """The 95 % interval of mean(better) - mean(worse), both over the same questions."""
    means = _resampled_means([better, worse], np.random.default_rng(seed))
    return _interval(means[:, 0] - means[:, 1])


def gap_recovered(
    families: Sequence[tuple[Sequence[bool], Sequence[bool], Sequence[bool]]], *, seed: int = 0
) -> tuple[float, Interval] | None:
    """(pair - edge) / (cloud - edge), averaged over the families, and its 95 % interval.

    A family is the right answers of edge, pair and cloud to the same questions. Questions are
    resampled within their family. None where a family has no gap to recover: its cloud is not
    better than its edge. A resample without a gap may stand for any value, so it counts as below
    the low end and as above the high one; an end that this leaves open is infinite.
    """
    rng = np.random.default_rng(seed)
    found = [_recovered(np.asarray(family, np.float64).mean(axis=1)) for family in families]
    if np.isnan(found).any():
        return None
    resampled = [_recovered(_resampled_means(family, rng)) for family in families]
    mean = np.mean(resampled, axis=0)
    low, _ = _interval(np.nan_to_num(mean, nan=-np.inf))
    _, high = _interval(np.nan_to_num(mean, nan=np.inf))
    return float(np.mean(found)), (low, high)


def _recovered(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """From means of edge, pair and cloud [..., 3]; NaN without a gap."""
    edge, pair, cloud = np.moveaxis(means, -1, 0)
    gap = np.where(cloud > edge, cloud - edge, np.nan)
    return (pair - edge) / gap


def _resampled_means(
    systems: Sequence[Sequence[bool]], rng: np.random.Generator
) -> NDArray[np.float64]:
    """float64[RESAMPLES, systems]: every system's mean over the same resampled questions."""
    right = np.asarray(systems, np.float64).T
    n = len(right)
    return rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) @ right / n


def _interval(values: NDArray[np.float64]) -> Interval:
    # Not interpolated: between two infinities there is nothing.
    low, high = np.quantile(values, (0.025, 0.975), method="inverted_cdf")
    return float(low), float(high)
