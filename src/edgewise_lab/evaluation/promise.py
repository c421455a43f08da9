"""Find the highest threshold that keeps a given fraction of answers right, with 95% confidence.

An answer without a known right answer counts as right if it agrees with the cloud's own. The method
is Learn then Test (Angelopoulos, Bates, Candès, Jordan and Lei 2021, arXiv 2110.01052) with a fixed
sequence. Thresholds are chosen before any answer is seen and tested in ascending order: the lowest
asks the cloud most. Each test is exact (Clopper-Pearson), and the first that fails ends the
sequence, so no correction for many tests is needed: for at least 95 of 100 random sets of
calibration prompts, a threshold that is found keeps that fraction.
"""

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import msgspec
import numpy as np

from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.routers.base import Router
from edgewise.routers.thresholds import own_scores
from edgewise_lab.evaluation.statistics import Interval, ratio_interval, scipy_part
from edgewise_lab.evaluation.systems import Outcome, cloud_share

CONFIDENCE = 0.95
SHARES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01)
"""Thresholds are tested that these fractions of the router's scores reach (`sequence`)."""

_BETWEEN = 24
"""Number of further thresholds, evenly spaced in log-odds from the first to the last of these."""

_MOST = 100_000
"""Largest number of prompts that an error message suggests."""


class Promise(msgspec.Struct, frozen=True):
    """A threshold, and how many calibration prompts a pair answers right with it.

    `right` of `prompts` answers were right or, if no right answer is known, agreed with the cloud
    model's. `least` is the lower bound of right / prompts at 95% confidence. `share` is the cloud
    share, `interval` its 95% interval.
    """

    threshold: float
    right: int
    prompts: int
    least: float
    share: float
    interval: Interval


def sequence(edge: EdgeModel, router: Router) -> list[float]:
    """Return the thresholds to test, ascending, at most 40.

    The edge answers built-in prompts alone, and the router scores each token. For each of the
    fractions in `SHARES` one threshold is chosen that this fraction of the scores reaches; 24 more
    are evenly spaced, in log-odds, between the lowest and the highest of these 16.
    """
    scores = own_scores(edge, router)
    by_share = np.quantile(scores, [1 - s for s in SHARES]) if scores else 1 - np.array(SHARES)
    bounded = np.clip(by_share, 1e-6, 1 - 1e-6)
    odds = np.log(bounded / (1 - bounded))
    even = 1 / (1 + np.exp(-np.linspace(odds[0], odds[-1], _BETWEEN)))
    return sorted({float(threshold) for threshold in (*by_share, *even)})


def fewest(keep: float) -> int:
    """Return the least number of prompts that can show that enough of all answers are right.

    Enough is the fraction `keep`, above 0 and below 1. If all answers to so many prompts are right,
    this is shown with 95% confidence; with fewer prompts it cannot be.
    """
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(keep))


def require_prompts(keep: float, prompts: int) -> None:
    """Raise `UsageError` if `prompts`, a number of prompts, is less than `fewest(keep)`.

    It is also raised if `keep` is not between 0 and 1, or scipy is not installed.
    """
    if not 0 < keep < 1:
        raise UsageError(f"keep must lie between 0 and 1, not {keep:g}.", setting="keep")
    scipy_part("stats")  # before anything is paid for
    if prompts < fewest(keep):
        raise UsageError(
            f"{prompts} prompts are too few to show that {100 * keep:g}% of the answers are kept; "
            f"it takes {fewest(keep)}",
            hint="give more, or keep less",
            setting="keep",
        )


def keeping(
    keep: float, thresholds: Sequence[float], answers: Callable[[float], Sequence[Outcome]]
) -> Promise:
    """Test the `thresholds` in order up to the first that fails; return the last that passes.

    A threshold fails if its answers do not show, with 95% confidence, that at least the fraction
    `keep` of all answers is right. `answers(threshold)` returns the graded answers to the
    calibration prompts. Raises `UsageError` if the first threshold fails.
    """
    found: Promise | None = None
    for threshold in thresholds:
        tested = _kept(threshold, answers(threshold))
        if tested.least < keep:
            if found is None:
                raise _refused(keep, tested)
            break
        found = tested
    assert found is not None
    return found


def _kept(threshold: float, outcomes: Sequence[Outcome]) -> Promise:
    right, n = sum(outcome.right for outcome in outcomes), len(outcomes)
    cloud = [o.cloud_tokens + o.wasted_tokens for o in outcomes]
    interval = ratio_interval(cloud, [o.output_tokens for o in outcomes])
    return Promise(threshold, right, n, least(right, n), cloud_share(outcomes), interval)


def least(right: int, prompts: int) -> float:
    """Return the lower bound of right / prompts at 95% confidence (one-sided, Clopper-Pearson)."""
    if not right:
        return 0.0
    stats: Any = scipy_part("stats")
    return float(stats.beta.ppf(1 - CONFIDENCE, right, prompts - right + 1))


def _refused(keep: float, first: Promise) -> UsageError:
    rate = first.right / first.prompts
    sizes = takewhile(lambda n: n < _MOST, (math.ceil(first.prompts * 1.1**i) for i in range(100)))
    enough = next((n for n in sizes if least(math.floor(rate * n), n) >= keep), None)
    hint = "keep less" if enough is None else f"give about {enough} prompts, or keep less"
    if not first.right:
        hint = "see whether `--check` fits the answers"
    return UsageError(
        f"Only {first.right} of {first.prompts} answers agree with the cloud (or are right), which "
        f"does not show {100 * keep:g}% at {CONFIDENCE:.0%} confidence",
        hint=hint,
        setting="keep",
    )
