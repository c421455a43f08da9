"""The formulas behind advice: limits, monotony, and values by hand."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgewise.advice import (
    MeasuredConditions,
    Money,
    ahead,
    bill_cloud,
    bill_pair,
    break_even,
    cloud_alone,
    edge_alone,
    excess,
    money,
)
from edgewise.costs.price import Price

LONG = 1e6
"""Tokens, so that a prompt counts for nothing."""

AT = MeasuredConditions(
    step=0.030,
    round_trip=0.100,
    consult=0.040,
    cloud_token=0.027,
    edge_prompt=0.3,
    cloud_prompt=0.045,
    prompt=40,
    answer=36,
    asked=0.05,
    changed=0.5,
)

parts = st.floats(0, 1)
seconds = st.floats(0.001, 0.5)
conditions = st.builds(
    MeasuredConditions,
    step=st.floats(0.001, 0.1),
    round_trip=st.floats(0, 0.5),
    consult=seconds,
    cloud_token=seconds,
    edge_prompt=seconds,
    cloud_prompt=seconds,
    prompt=st.floats(1, 2000),
    answer=st.integers(1, 300).map(float),
    asked=parts,
    changed=parts,
    speculate=st.integers(0, 32),
    cached=parts,
)


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def test_values_by_hand() -> None:
    assert edge_alone(AT) == pytest.approx(0.3 + 35 * 0.03)
    assert cloud_alone(AT) == pytest.approx(0.1 + 0.045 + 35 * 0.027)
    # Four steps fit into a trip, so near the end of an answer some of it shows.
    # And none of that where another consult left on the way, one in twenty tokens.
    left = sum(0.95**steps * (0.14 - steps * 0.03) for steps in range(5)) / 36
    expected = 0.5 * 0.14 + 0.5 * left + 0.125 * 0.03
    assert excess(AT) == pytest.approx(expected)
    assert ahead(AT) == pytest.approx(1.35 + 36 * 0.05 * expected)


def test_ahead_costs_what_the_guesses_do_not_hide() -> None:
    """At 5 ms a step 16 guesses end long before 0.34 s have passed."""
    quick = replace(AT, step=0.005, round_trip=0.3, answer=LONG)
    hidden = 15 * 0.005
    assert excess(quick) == pytest.approx(
        0.5 * 0.34 + 0.5 * 0.95**15 * (0.34 - hidden) + 0.125 * 0.005, rel=1e-4
    )
    assert excess(replace(quick, speculate=128)) < excess(quick)
    assert excess(replace(quick, speculate=0)) == pytest.approx(0.34)


@given(conditions)
def test_limits(at: MeasuredConditions) -> None:
    alone = edge_alone(at)
    assert ahead(replace(at, asked=0.0)) == near(alone)
    always = replace(at, changed=1.0)
    assert ahead(always) == near(alone + at.answer * at.asked * at.trip)
    assert ahead(replace(at, round_trip=0.0, consult=0.0)) == near(alone)


@given(conditions)
def test_running_ahead_lies_between_its_bound_and_waiting(at: MeasuredConditions) -> None:
    consults = at.answer * at.asked * at.trip
    assert ahead(at) >= (edge_alone(at) + at.changed * consults) * (1 - 1e-9)
    assert ahead(at) <= (edge_alone(at) + consults) * (1 + 1e-9)


@given(conditions, st.floats(0, 0.3))
def test_a_longer_link_makes_nothing_faster(at: MeasuredConditions, more: float) -> None:
    longer = replace(at, round_trip=at.round_trip + more)
    for seconds_of in (ahead, cloud_alone):
        assert seconds_of(longer) >= seconds_of(at) * (1 - 1e-9)
    assert edge_alone(longer) == edge_alone(at)


@given(conditions)
def test_at_its_break_even_the_pair_is_as_fast_as_streaming(at: MeasuredConditions) -> None:
    share = break_even(at)
    met = replace(at, asked=share)
    if 0 < share < 1:
        assert ahead(met) == pytest.approx(cloud_alone(met), rel=1e-6)
    elif share == 0:
        assert edge_alone(met) >= cloud_alone(met)
    else:
        assert share == 1
        assert ahead(met) <= cloud_alone(met) * (1 + 1e-6)


def test_bills_by_hand() -> None:
    """500 tokens of prompt, 300 of answer and 15 consults."""
    at = replace(AT, prompt=500.0, answer=300.0, asked=0.05)
    price = money(Price(input=Decimal("0.28"), cached=Decimal("0.028"), output=Decimal("0.42")))
    assert price == pytest.approx((0.28e-6, 0.028e-6, 0.42e-6))
    alone = bill_cloud(at, price)
    assert alone == pytest.approx(500 * 0.28e-6 + 300 * 0.42e-6)
    one = 15 * (650 * price.input + price.output)
    assert bill_pair(at, price) == pytest.approx(one)
    cached = 650 * (price.input + 14 * price.cached) + 15 * price.output
    assert bill_pair(replace(at, cached=1.0), price) == pytest.approx(cached)
    assert bill_pair(replace(at, cached=1.0), price) < bill_pair(at, price)


@given(conditions)
def test_bills_grow_with_what_is_asked(at: MeasuredConditions) -> None:
    price = Money(3e-6, 1e-6, 9e-6)
    assert bill_pair(replace(at, asked=0.0), price) == 0
    assert bill_pair(at, price) >= bill_pair(replace(at, asked=at.asked / 2), price)
    assert bill_pair(replace(at, cached=1.0), price) <= bill_pair(replace(at, cached=0.0), price)
    assert bill_cloud(at, price) > 0
