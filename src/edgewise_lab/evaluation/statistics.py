"""Intervals: paired bootstrap over questions, 10,000 resamples, 95 %."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000

Interval = tuple[float, float]


def mean_interval(right: Sequence[float], *, seed: int = 0) -> Interval:
    """The 95 % interval of an accuracy."""
    return _interval(_resampled_means([right], _drawn((len(right),), seed)[0])[:, 0])


def difference_interval(
    better: Sequence[float], worse: Sequence[float], *, seed: int = 0
) -> Interval:
    """The 95 % interval of mean(better) - mean(worse), both over the same questions."""
    means = _resampled_means([better, worse], _drawn((len(better),), seed)[0])
    return _interval(means[:, 0] - means[:, 1])


def ratio_interval(part: Sequence[float], whole: Sequence[float], *, seed: int = 0) -> Interval:
    """The 95 % interval of sum(part) / sum(whole), both over the same questions, whole > 0."""
    means = _resampled_means([part, whole], _drawn((len(part),), seed)[0])
    return _interval(means[:, 0] / means[:, 1])


def median_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """The 95 % interval of the median."""
    drawn = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    return _interval(np.median(np.asarray(values, np.float64)[drawn], axis=1))


def gap_recovered(
    families: Sequence[tuple[Sequence[bool], Sequence[bool], Sequence[bool]]], *, seed: int = 0
) -> tuple[float, Interval] | None:
    """(pair - edge) / (cloud - edge), averaged over the families, and its 95 % interval.

    A family is the right answers of edge, pair and cloud to the same questions. Questions are
    resampled within their family. None where a family has no gap to recover: its cloud is not
    better than its edge. A resample without a gap may stand for any value, so it counts as below
    the low end and as above the high one; an end that this leaves open is infinite.
    """
    found = [_recovered(np.asarray(family, np.float64).mean(axis=1)) for family in families]
    if np.isnan(found).any():
        return None
    draws = _drawn(tuple(len(family[0]) for family in families), seed)
    pairs = zip(families, draws, strict=True)
    resampled = [_recovered(_resampled_means(family, drawn)) for family, drawn in pairs]
    mean = np.mean(resampled, axis=0)
    low, _ = _interval(np.nan_to_num(mean, nan=-np.inf))
    _, high = _interval(np.nan_to_num(mean, nan=np.inf))
    return float(np.mean(found)), (low, high)


class Seeds(NamedTuple):
    """Right answers of one family's questions: [n] of a system, [seeds, n] of a trained pair.

    Those of a rival that was trained several times are means over its seeds.
    """

    edge: Sequence[bool]
    pair: Sequence[Sequence[bool]]
    cloud: Sequence[bool]
    rival: Sequence[float]


def pooled_gap(families: Sequence[Seeds], *, seed: int = 0) -> tuple[float, Interval]:
    """`gap_recovered` of a pair that was trained several times.

    The seeds of the training are resampled along with the questions. The value is NaN where a
    family has no gap; resamples without one leave the interval open, as there.
    """
    return _pooled(families, lambda s: (s.pair - s.edge) / _positive(s.cloud - s.edge), seed)


def pooled_difference(families: Sequence[Seeds], *, seed: int = 0) -> tuple[float, Interval]:
    """mean(pair) - mean(rival), averaged over the families; seeds resampled as well."""
    return _pooled(families, lambda s: s.pair - s.rival, seed)


class _Means(NamedTuple):
    edge: NDArray[np.float64]
    pair: NDArray[np.float64]
    cloud: NDArray[np.float64]
    rival: NDArray[np.float64]


def _pooled(
    families: Sequence[Seeds], figure: Callable[[_Means], NDArray[np.float64]], seed: int
) -> tuple[float, Interval]:
    count = len(families[0].pair)
    chosen, questions = _draws(seed, count, tuple(len(family.edge) for family in families))
    found: list[NDArray[np.float64]] = []
    resampled: list[NDArray[np.float64]] = []
    for family, weights in zip(families, questions, strict=True):
        n = len(family.edge)
        for target, w, s in (
            (found, np.full((1, n), 1 / n), np.full((1, count), 1 / count)),
            (resampled, weights, chosen),
        ):
            pair = ((w @ np.asarray(family.pair, np.float64).T) * s).sum(axis=1)
            alone = (
                w @ np.asarray(x, np.float64) for x in (family.edge, family.cloud, family.rival)
            )
            edge, cloud, rival = alone
            target.append(figure(_Means(edge, pair, cloud, rival)))
    mean = np.mean(resampled, axis=0)
    low, _ = _interval(np.nan_to_num(mean, nan=-np.inf))
    _, high = _interval(np.nan_to_num(mean, nan=np.inf))
    return float(np.mean(found)), (low, high)


@lru_cache(maxsize=4)
def _draws(
    seed: int, count: int, sizes: tuple[int, ...]
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Weights of the seeds, and of each family's questions: the same for every system."""
    rng = np.random.default_rng(seed)

    def weights(n: int) -> NDArray[np.float64]:
        return rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) / n

    return weights(count), [weights(n) for n in sizes]


def _positive(gap: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(gap > 0, gap, np.nan)


def _recovered(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """From means of edge, pair and cloud [..., 3]; NaN without a gap."""
    edge, pair, cloud = np.moveaxis(means, -1, 0)
    gap = np.where(cloud > edge, cloud - edge, np.nan)
    return (pair - edge) / gap


# All systems of a report are resampled alike, and drawing is most of the work.
@lru_cache(maxsize=4)
def _drawn(sizes: tuple[int, ...], seed: int) -> list[NDArray[np.int32]]:
    """For each family, int32[RESAMPLES, n]: how often each of its n questions is drawn."""
    rng = np.random.default_rng(seed)
    return [
        rng.multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.int32, copy=False) for n in sizes
    ]


def _resampled_means(
    systems: Sequence[Sequence[float]], drawn: NDArray[np.int32]
) -> NDArray[np.float64]:
    """float64[RESAMPLES, systems]: every system's mean over the same resampled questions."""
    values = np.asarray(systems, np.float64).T
    return drawn @ values / len(values)


def _interval(values: NDArray[np.float64]) -> Interval:
    # Not interpolated: between two infinities there is nothing.
    low, high = np.quantile(values, (0.025, 0.975), method="inverted_cdf")
    return float(low), float(high)
