"""Promises of a quality: what so many answers can show, and how often they are kept."""

from collections.abc import Sequence

import numpy as np
import pytest

from edgewise.errors import UsageError
from edgewise_lab.evaluation.promise import fewest, keeping, least
from edgewise_lab.evaluation.systems import Outcome
from tests.evaluation.outcomes import outcome

GRID = (0.1, 0.2, 0.3, 0.4)


def outcomes(right: Sequence[bool]) -> list[Outcome]:
    return [outcome(i, right=one) for i, one in enumerate(right)]


@pytest.mark.parametrize(
    ("right", "prompts", "bound"),
    # By tables of exact binomial limits.
    [(59, 59, 0.950), (58, 58, 0.9496), (95, 100, 0.8977), (8, 10, 0.4931), (0, 10, 0.0)],
)
def test_the_bound_is_that_of_clopper_and_pearson(right: int, prompts: int, bound: float) -> None:
    assert least(right, prompts) == pytest.approx(bound, abs=5e-4)


@pytest.mark.parametrize("keep", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_the_fewest_prompts_can_just_bear_it(keep: float) -> None:
    n = fewest(keep)
    assert least(n, n) >= keep > least(n - 1, n - 1)


def test_the_sequence_ends_at_the_first_threshold_that_fails() -> None:
    # The last would pass, but stands behind one that does not.
    right = dict(zip(GRID, (100, 98, 80, 100), strict=True))
    found = keeping(0.9, GRID, lambda at: outcomes([i < right[at] for i in range(100)]))
    assert (found.threshold, found.right, found.prompts) == (0.2, 98, 100)


@pytest.mark.parametrize(("right", "hint"), [(95, "prompts"), (80, "keep less")])
def test_what_cannot_be_shown_is_refused(right: int, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        keeping(0.94, GRID, lambda at: outcomes([i < right for i in range(100)]))
    assert refused.value.hint is not None
    assert hint in refused.value.hint


@pytest.mark.parametrize("rates", [(0.99, 0.95, 0.9, 0.85), (0.93, 0.92, 0.91, 0.899)])
def test_promises_are_kept_in_nineteen_of_twenty_draws(rates: Sequence[float]) -> None:
    rng, keep = np.random.default_rng(0), 0.9
    broken = 0
    for _ in range(400):
        drawn = rng.random(200)
        right = [(drawn < rate).tolist() for rate in rates]
        answers = dict(zip(GRID, map(outcomes, right), strict=True))
        try:
            found = keeping(keep, GRID, answers.__getitem__)
        except UsageError:
            continue
        broken += rates[GRID.index(found.threshold)] < keep
    assert broken <= 0.05 * 400
