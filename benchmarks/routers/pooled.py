"""Figures of routers that were trained several times: seeds are resampled along with questions."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise_lab.evaluation.statistics import RESAMPLES, Interval, interval_of


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
    low, _ = interval_of(np.nan_to_num(mean, nan=-np.inf))
    _, high = interval_of(np.nan_to_num(mean, nan=np.inf))
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
