"""Intervals against cases that can be worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise_lab.evaluation.statistics import (
    difference_interval,
    gap_recovered,
    mean_interval,
    median_interval,
    ratio_interval,
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
    found = gap_recovered(rights(20), rights(50), rights(80))
    assert found is not None
    value, (low, high) = found
    assert value == pytest.approx(0.5)
    assert low < 0.5 < high
    # The pair's 30 gains among the cloud's 60: given those 60, a proportion of one half.
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 60), abs=0.03)


def test_the_interval_of_a_median() -> None:
    values = [float(value) for value in range(1, 102)]
    low, high = median_interval([*values, 1e9])
    # The median is between order statistics about sqrt(n) on each side of the middle one.
    assert 38 <= low < 51 < high <= 64
    assert median_interval([0.5] * 9) == (0.5, 0.5)


def test_the_interval_of_a_share_is_of_its_questions() -> None:
    """Tokens over tokens: a long answer weighs more, and answers alike leave no doubt."""
    assert ratio_interval([1, 2, 3], [10, 20, 30]) == pytest.approx((0.1, 0.1))
    low, high = ratio_interval([0, 30] * 50, [100, 100] * 50)
    assert low < 0.15 < high
    # A mean of 100 draws from {0, 0.3}.
    assert high - low == pytest.approx(2 * 1.96 * 0.15 / 10, rel=0.05)


answers = st.lists(st.booleans(), min_size=1, max_size=30)
paired_answers = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=30
)


def columns(rows: list[tuple[bool, bool, bool]]) -> list[list[bool]]:
    return [list(column) for column in zip(*rows, strict=True)]


@given(answers)
def test_the_interval_of_a_mean_holds_it(right: list[bool]) -> None:
    low, high = mean_interval(right)
    mean = sum(right) / len(right)
    assert 0 <= low <= mean <= high <= 1
    assert (low == high) == (len(set(right)) == 1)
    assert mean_interval(right) == (low, high)  # from a seed


@given(paired_answers)
def test_a_difference_turns_round(rows: list[tuple[bool, bool, bool]]) -> None:
    one, other, _ = columns(rows)
    low, high = difference_interval(one, other)
    mean = (sum(one) - sum(other)) / len(one)
    assert low <= mean + 1e-9
    assert mean - 1e-9 <= high
    back_low, back_high = difference_interval(other, one)
    assert (back_low, back_high) == pytest.approx((-high, -low), abs=2 / len(one))


@given(paired_answers)
def test_the_gap_is_a_fraction_of_its_ends(rows: list[tuple[bool, bool, bool]]) -> None:
    edge, pair, cloud = columns(rows)
    found = gap_recovered(edge, pair, cloud)
    if sum(cloud) <= sum(edge):
        assert found is None
        return
    assert found is not None
    value, (low, high) = found
    assert value == pytest.approx((sum(pair) - sum(edge)) / (sum(cloud) - sum(edge)))
    assert low <= value <= high
