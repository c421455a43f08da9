"""Price lists: an answer's requests by hand, and what holds for any of them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgewise_lab.bench.frontier.billing import (
    FIFTIETH,
    NO_DISCOUNT,
    OWN_GPU,
    PRICE_LISTS,
    TENTH_OF_LONG,
    CloudRequest,
    PriceList,
    bill,
)


def requested(prompt: int, seen: int, written: int, taken: float) -> CloudRequest:
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
    millionths = {
        # Three prompts and three tokens at four.
        NO_DISCOUNT: Decimal(3300 + 12),
        # Only the third saw 1,024 tokens or more.
        TENTH_OF_LONG: Decimal(1000 + 1100 + 99 + 12) + Decimal("110.1"),
        FIFTIETH: Decimal(1000 + 99 + 99 + 12) + Decimal("0.02") * (1001 + 1101),
        # 0.3 s at 0.001.
        OWN_GPU: Decimal(300),
    }
    for prices, expected in millionths.items():
        assert bill(prices, consults) == expected / 1_000_000, prices.name


@given(answers())
def test_a_discount_makes_nothing_dearer(requests: list[CloudRequest]) -> None:
    plain = bill(NO_DISCOUNT, requests)
    assert bill(FIFTIETH, requests) <= bill(TENTH_OF_LONG, requests) <= plain
    unseen = [replace(request, seen=0) for request in requests]
    for prices in PRICE_LISTS:
        assert bill(prices, requests) <= bill(prices, unseen)


@pytest.mark.parametrize(
    "request_", [requested(10, 11, 1, 0.0), requested(10, -1, 1, 0.0), requested(10, 0, -1, 0.0)]
)
@pytest.mark.parametrize("prices", PRICE_LISTS)
def test_counts_that_cannot_be(prices: PriceList, request_: CloudRequest) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        bill(prices, [request_])


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -0.5])
def test_a_time_that_is_none_is_refused_only_where_it_is_priced(seconds: float) -> None:
    requests = [requested(10, 0, 1, seconds)]
    assert bill(NO_DISCOUNT, requests) > 0
    with pytest.raises(ValueError, match="has no time"):
        bill(OWN_GPU, requests)
