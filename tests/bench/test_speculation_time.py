"""Time of speculative decoding: the closed form, and the replay of measured agreement."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import UsageError
from edgewise_lab.bench.frontier.speculation_time import computed_time, expected

STEP, TRIP, VERIFY = 0.03, 0.1, 0.02


def replayed(matches: list[bool], *, draft: int, pipelined: bool, pair: float = STEP) -> float:
    return computed_time(
        matches,
        draft=draft,
        pipelined=pipelined,
        edge_step=STEP,
        round_trip=TRIP,
        verify=VERIFY,
        edge_pair=pair,
    )


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("draft", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 0.99])
def test_the_closed_form_is_what_many_tokens_come_to(
    acceptance: float, draft: int, pipelined: bool
) -> None:
    rng = random.Random(1)
    matches = [rng.random() < acceptance for _ in range(20_000)]
    real = sum(matches) / len(matches)
    found = replayed(matches, draft=draft, pipelined=pipelined, pair=0.05) / len(matches)
    told = expected(real, draft, STEP, TRIP, VERIFY, pipelined=pipelined, edge_pair=0.05)
    assert found == pytest.approx(told, rel=0.02)


def test_an_edge_that_always_agrees_never_waits_when_pipelined() -> None:
    assert expected(1, 8, STEP, TRIP, VERIFY, pipelined=True) == pytest.approx(STEP)
    assert expected(1, 3, STEP, TRIP, VERIFY) == pytest.approx((3 * STEP + TRIP + VERIFY) / 4)


def test_an_edge_that_never_agrees_waits_for_each_token() -> None:
    for pipelined in (False, True):
        one = expected(0, 1, STEP, TRIP, VERIFY, pipelined=pipelined)
        assert one == pytest.approx(STEP + TRIP + VERIFY)


@given(
    st.lists(st.booleans(), min_size=1, max_size=60),
    st.integers(1, 16),
)
def test_pipelined_is_never_slower_than_waiting(matches: list[bool], draft: int) -> None:
    waits = replayed(matches, draft=draft, pipelined=False)
    # It may find out of a rejected first token a pass later than who idles.
    rejected = matches.count(False) + 1
    assert replayed(matches, draft=draft, pipelined=True) <= waits + rejected * STEP + 1e-9


def test_the_prompt_is_read_on_both_sides_at_once() -> None:
    taken = computed_time(
        [True],
        draft=4,
        pipelined=False,
        edge_step=STEP,
        round_trip=TRIP,
        verify=VERIFY,
        edge_prompt=1.0,
        verify_prompt=0.05,
    )
    assert taken == pytest.approx(TRIP + 0.05)
    taken = computed_time(
        [False, True, True],
        draft=2,
        pipelined=False,
        edge_step=STEP,
        round_trip=TRIP,
        verify=VERIFY,
        edge_prompt=1.0,
    )
    assert taken == pytest.approx(1.0 + 2 * STEP + TRIP + VERIFY)


@pytest.mark.parametrize(
    ("acceptance", "draft", "step", "trip"),
    [(1.1, 4, STEP, TRIP), (-0.1, 4, STEP, TRIP), (0.5, 0, STEP, TRIP), (0.5, 4, 0, TRIP)],
)
def test_what_cannot_be_is_refused(acceptance: float, draft: int, step: float, trip: float) -> None:
    with pytest.raises(UsageError, match="acceptance"):
        expected(acceptance, draft, step, trip, 0.0)


def test_no_answer_takes_no_time_that_could_be_told() -> None:
    with pytest.raises(UsageError, match="at least 1 token"):
        replayed([], draft=4, pipelined=False)
