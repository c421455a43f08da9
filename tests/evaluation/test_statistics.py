"""Intervals against cases that can be worked out by hand."""

import math

import pytest

from edgewise.evaluation.statistics import (
    Seeds,
    difference_interval,
    gap_recovered,
    pooled_difference,
    pooled_gap,
)


def rights(count: int, of: int = 100) -> list[bool]:
    return [True] * count + [False] * (of - count)


def test_the_interval_of_a_difference() -> None:
    low, high = difference_interval(rights(60), rights(0))
    assert low < 0.6 < high
    # 1.96 standard errors of a proportion on each side
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.6 * 0.4 / 100), abs=0.02)
    assert difference_interval([True] * 10, [True] * 10) == (0.0, 0.0)


def test_the_gap_recovered() -> None:
    found = gap_recovered([(rights(20), rights(50), rights(80))])
    assert found is not None
    value, (low, high) = found
    assert value == pytest.approx(0.5)
    assert low < 0.5 < high
    # The pair's 30 gains among the cloud's 60: given those 60, a proportion of one half.
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 60), abs=0.03)


def test_the_ends_of_the_gap_have_no_width() -> None:
    edge, cloud = rights(20), rights(80)
    assert gap_recovered([(edge, edge, cloud)]) == (0.0, (0.0, 0.0))
    assert gap_recovered([(edge, cloud, cloud)]) == (1.0, (1.0, 1.0))


def test_families_weigh_alike_whatever_their_size() -> None:
    small = (rights(0, 10), rights(10, 10), rights(10, 10))
    large = (rights(0, 1000), rights(0, 1000), rights(1000, 1000))
    found = gap_recovered([small, large])
    assert found is not None
    assert found[0] == pytest.approx(0.5)


def test_a_family_without_a_gap_has_no_figure() -> None:
    same = (rights(5, 10), rights(5, 10), rights(5, 10))
    assert gap_recovered([same]) is None
    assert gap_recovered([same, (rights(2, 10), rights(3, 10), rights(8, 10))]) is None


def test_a_cloud_worse_than_the_edge_leaves_no_gap() -> None:
    assert gap_recovered([(rights(8, 10), rights(6, 10), rights(4, 10))]) is None


def test_the_interval_of_two_questions() -> None:
    # Of the four resamples of (gained, not gained) one recovers all, one nothing, two a half.
    found = gap_recovered([([False, False], [True, False], [True, True])])
    assert found == (0.5, (0.0, 1.0))


def test_resamples_without_a_gap_leave_the_interval_open() -> None:
    # One of the four resamples draws only the question that edge and cloud both miss.
    found = gap_recovered([([False, False], [True, False], [True, False])])
    assert found == (1.0, (-math.inf, math.inf))


def test_seeds_are_a_source_of_chance() -> None:
    """Trainings that disagree widen the interval; the mean stays where it is."""
    edge, cloud = [False] * 100, [True] * 100
    half = [True] * 50 + [False] * 50
    alike = Seeds(edge, [half, half], cloud, edge)
    unlike = Seeds(edge, [[True] * 100, [False] * 100], cloud, edge)
    for figure in (pooled_gap, pooled_difference):
        (mean, narrow), (same, wide) = figure([alike]), figure([unlike])
        assert (mean, same) == pytest.approx((0.5, 0.5))
        assert narrow[1] - narrow[0] < 0.25
        assert wide == pytest.approx((0.0, 1.0))


def test_a_rival_that_is_as_good_leaves_no_difference() -> None:
    right = [True, False] * 50
    mean, (low, high) = pooled_difference([Seeds([False] * 100, [right], [True] * 100, right)])
    assert (mean, low, high) == pytest.approx((0.0, 0.0, 0.0))
