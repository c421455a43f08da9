"""95 % intervals (low, high) by paired bootstrap: `seed` draws 10,000 resamples of questions."""

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.errors import UsageError

RESAMPLES = 10_000

Interval = tuple[float, float]


def mean_interval(right: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the 95 % interval of the mean of `right`, which has a grade for each question."""
    return interval_of(_resampled_means([right], _drawn(len(right), seed))[:, 0])


def difference_interval(
    better: Sequence[float], worse: Sequence[float], *, seed: int = 0
) -> Interval:
    """Return the 95 % interval of mean(better) - mean(worse), both over the same questions."""
    means = _resampled_means([better, worse], _drawn(len(better), seed))
    return interval_of(means[:, 0] - means[:, 1])


def ratio_interval(part: Sequence[float], whole: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the 95 % interval of sum(part) / sum(whole), both over the same questions."""
    means = _resampled_means([part, whole], _drawn(len(part), seed))
    return interval_of(means[:, 0] / means[:, 1])


def median_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the 95 % interval of the median of `values`."""
    drawn = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    return interval_of(np.median(np.asarray(values, np.float64)[drawn], axis=1))


def gap_recovered(
    edge: Sequence[bool], pair: Sequence[bool], cloud: Sequence[bool], *, seed: int = 0
) -> tuple[float, Interval] | None:
    """Return (pair - edge) / (cloud - edge), of accuracies, and its 95 % interval.

    The arguments are grades of the answers to the same questions. None if the cloud is not better
    than the edge: there is no gap to recover. Resamples without a gap widen the interval on both
    sides. If they are more than 2.5 % of all, both its ends are infinite.
    """
    answers = [edge, pair, cloud]
    found = _recovered(np.mean(answers, axis=1))
    if np.isnan(found):
        return None
    resampled = _recovered(_resampled_means(answers, _drawn(len(edge), seed)))
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
def _drawn(n: int, seed: int) -> NDArray[np.int32]:
    """Bootstrap counts, int32[RESAMPLES, n]: how often each of n questions is drawn."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.int32, copy=False)


def _resampled_means(
    systems: Sequence[Sequence[float]], drawn: NDArray[np.int32]
) -> NDArray[np.float64]:
    """float64[RESAMPLES, systems]: every system's mean over the same resampled questions."""
    values = np.asarray(systems, np.float64).T
    return drawn @ values / len(values)


def interval_of(values: NDArray[np.float64]) -> Interval:
    """Return the 2.5 % and 97.5 % quantiles of resampled values."""
    # Not interpolated: between two infinities there is nothing.
    low, high = np.quantile(values, (0.025, 0.975), method="inverted_cdf")
    return float(low), float(high)


def scipy_part(name: str) -> Any:
    """Return the submodule `name` of scipy. Raises `UsageError` if scipy is not installed."""
    try:
        return import_module(f"scipy.{name}")
    except ImportError as error:
        raise UsageError(
            "Statistics need scipy", hint="pip install scipy (the extra lab has it, too)"
        ) from error
