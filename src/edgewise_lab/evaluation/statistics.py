"""95 % intervals (low, high) by paired bootstrap: always the same 10,000 resamples of questions."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000

Interval = tuple[float, float]


def mean_interval(right: Sequence[float]) -> Interval:
    return interval_of(_resampled_means([right], _drawn(len(right)))[:, 0])


def difference_interval(better: Sequence[float], worse: Sequence[float]) -> Interval:
    """Return the 95 % interval of mean(better) - mean(worse), over the same questions."""
    means = _resampled_means([better, worse], _drawn(len(better)))
    return interval_of(means[:, 0] - means[:, 1])


def ratio_interval(part: Sequence[float], whole: Sequence[float]) -> Interval:
    """Return the 95 % interval of sum(part) / sum(whole), over the same questions."""
    means = _resampled_means([part, whole], _drawn(len(part)))
    return interval_of(means[:, 0] / means[:, 1])


def median_interval(values: Sequence[float]) -> Interval:
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    return interval_of(np.median(np.asarray(values, np.float64)[drawn], axis=1))


def gap_recovered(
    edge: Sequence[bool], pair: Sequence[bool], cloud: Sequence[bool]
) -> tuple[float, Interval] | None:
    """Return (pair - edge) / (cloud - edge), of accuracies, and its interval; None without a gap.

    The arguments say for each question whether it was answered right. Resamples without a gap widen
    the interval on both sides: with more than 2.5 % of them its ends are infinite.
    """
    answers = [edge, pair, cloud]
    found = _recovered(np.mean(answers, axis=1))
    if np.isnan(found):
        return None
    resampled = _recovered(_resampled_means(answers, _drawn(len(edge))))
    low, _ = interval_of(np.nan_to_num(resampled, nan=-np.inf))
    _, high = interval_of(np.nan_to_num(resampled, nan=np.inf))
    return float(found), (low, high)


def _recovered(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gap recovered, from means of edge, pair and cloud [..., 3]; NaN without a gap."""
    edge, pair, cloud = np.moveaxis(means, -1, 0)
    gap = np.where(cloud > edge, cloud - edge, np.nan)
    return (pair - edge) / gap


# All systems of a report are resampled alike, and drawing is most of the work.
@lru_cache(maxsize=4)
def _drawn(n: int) -> NDArray[np.int32]:
    """Bootstrap counts, int32[RESAMPLES, n]: how often each of n questions is drawn."""
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    return counts.astype(np.int32, copy=False)


def _resampled_means(
    systems: Sequence[Sequence[float]], drawn: NDArray[np.int32]
) -> NDArray[np.float64]:
    """float64[RESAMPLES, systems]: every system's mean over the same questions."""
    values = np.asarray(systems, np.float64).T
    return drawn @ values / len(values)


def interval_of(values: NDArray[np.float64]) -> Interval:
    """Return the 2.5 % and 97.5 % quantiles of resampled values."""
    # Not interpolated: between two infinities there is nothing.
    low, high = np.quantile(values, (0.025, 0.975), method="inverted_cdf")
    return float(low), float(high)
