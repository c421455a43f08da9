"""Answers that a chat model is asked to write whole: what they cost, and where they do not come."""

import asyncio

import pytest

from edgewise.loop.decoder import collect
from edgewise.loop.health import FAILURES, Breaker
from edgewise.loop.policy import INITIAL_BUCKET
from tests.loop.test_read_along import SAID, WRONG, reading, whole


async def never() -> str:
    await asyncio.sleep(60)
    return ""


def breaks(breaker: Breaker) -> None:
    for _ in range(FAILURES):
        breaker.failed()


@pytest.mark.parametrize("how", ["left", "timeout", "circuit_open"])
def test_a_whole_answer_in_vain_costs_the_share_nothing(how: str) -> None:
    """Seen: all that it might have had was owed by the answers after it."""
    policy = {"cloud_share": 0.1, **({"deadline": 0.3} if how == "timeout" else {})}
    with reading(policy=policy) as (pair, served):
        served.whole = never
        decoder = whole(pair, 1.0)
        with decoder.stream(SAID, pending=True, max_tokens=600) as events:
            for _ in range(3):
                next(events)
            if how == "circuit_open":
                breaks(decoder.tiers[0].breaker)
            usage = None if how == "left" else collect(events).usage
        assert events.budget.bucket >= INITIAL_BUCKET
    assert usage is None or (usage.wasted_tokens, usage.escalated) == (0, False)


def test_no_whole_answer_is_asked_for_to_test_the_link() -> None:
    """It would be paid for, and not waited for."""
    with reading() as (pair, served):
        decoder = whole(pair, 1.0)
        decoder.tiers[0].breaker.failed(silent=True)
        first = decoder.generate(SAID)
        assert len(served.asked) == len(served.bodies) - 1  # beside the check at the start
        second = decoder.generate(SAID)
    assert (first.text, second.text) == (WRONG, "A whole answer.")
