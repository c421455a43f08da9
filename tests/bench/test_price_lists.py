"""Price lists: an answer's requests by hand, and what holds for any of them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgewise_lab.bench.frontier.billing import OWN_GPU, PRICE_LISTS, CloudRequest, bill

NO_DISCOUNT, TENTH_OF_LONG, FIFTIETH, _ = PRICE_LISTS


def requested(prompt: int, seen: int, written: int, taken: float | None) -> CloudRequest:
    return CloudRequest(prompt=prompt, seen=seen, written=written, engine_seconds=taken)


@st.composite
def answers(draw: st.DrawFn) -> list[CloudRequest]:
    """An answer's requests: each sees at most what the one before it read and wrote."""
    prompt, seen = draw(st.integers(1, 3000)), 0
    requests: list[CloudRequest] = []
    for _ in range(draw(st.integers(1, 6))):
        written = draw(st.integers(0, 20))
        taken = draw(st.floats(0, 5))
        requests.append(requested(prompt, draw(st.integers(0, seen)), written, taken))
        seen = prompt + written
        prompt = seen + draw(st.integers(0, 50))
    return requests


def test_a_bill_by_hand() -> None:
    consults = [
        requested(1000, 0, 1, 0.25),
        requested(1100, 1001, 1, 0.05),
        requested(1200, 1101, 1, 0),
    ]
    expected = {
        # Three prompts and three tokens at four.
        NO_DISCOUNT: 3300 + 12,
        # Only the third saw 1,024 tokens or more.
        TENTH_OF_LONG: 1000 + 1100 + 99 + 12 + 110.1,
        FIFTIETH: 1000 + 99 + 99 + 12 + 0.02 * (1001 + 1101),
        OWN_GPU: 0.3,
    }
    for prices, wanted in expected.items():
        assert bill(prices, consults) == pytest.approx(wanted), prices.name
        assert bill(prices, []) == 0


@given(answers())
def test_a_discount_makes_nothing_dearer(requests: list[CloudRequest]) -> None:
    def cost(name: str, requests: list[CloudRequest]) -> float:
        found = bill(next(one for one in PRICE_LISTS if one.name == name), requests)
        assert found is not None
        return found

    costs = [cost(prices.name, requests) for prices in (FIFTIETH, TENTH_OF_LONG, NO_DISCOUNT)]
    assert all(less <= more + 1e-6 for less, more in pairwise(costs))
    unseen = [replace(request, seen=0) for request in requests]
    for prices in PRICE_LISTS:
        assert cost(prices.name, requests) <= cost(prices.name, unseen) + 1e-6


def test_a_time_that_nobody_reported_is_missed_only_where_it_is_priced() -> None:
    requests = [requested(10, 0, 1, None), requested(10, 0, 1, 0.5)]
    assert bill(OWN_GPU, requests) is None
    assert bill(NO_DISCOUNT, requests) == 28
