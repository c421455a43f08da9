"""One budget for many answers, however they overlap."""

import threading
from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import given

from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import (
    INITIAL_CREDIT,
    MAX_CREDIT,
    MAX_LOG_ODDS,
    Budget,
    Policy,
    SharedBudget,
)
from edgewise.routers.constant import Random
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise

IDS = list(b"Q: sky? A:")


def one(budgets: SharedBudget, policy: Policy, tokens: int, seed: int) -> tuple[int, int]:
    """Cloud tokens, used and wasted, and output tokens of an answer on the budgets."""
    decoder = Decoder(
        ScriptedEdge(noise(seed)),
        router=Random(seed),
        policy=policy,
        cloud=ScriptedCloud(noise(seed + 1), delay=0.002),
    )
    taken = budgets.take()
    with decoder.stream(IDS, max_tokens=tokens, budget=taken) as events:
        usage = collect(events).usage
        budgets.settle(taken, events.budget)
    return usage.cloud_tokens + usage.wasted_tokens, usage.edge_tokens + usage.cloud_tokens


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.sampled_from([0.05, 0.2, 0.5]))
def test_short_answers_one_after_the_other_keep_the_share(lengths: list[int], share: float) -> None:
    budgets, policy = SharedBudget(), Policy(cloud_share=share)
    counted = [one(budgets, policy, length, seed) for seed, length in enumerate(lengths)]
    cloud, output = (sum(counts) for counts in zip(*counted, strict=True))
    assert cloud <= INITIAL_CREDIT + share * output + 1e-6


def test_what_was_wasted_ahead_is_paid_for_by_the_next_answers() -> None:
    budgets = SharedBudget()
    policy = Policy(cloud_share=0.2, speculate=12)
    counted = [one(budgets, policy, 20, seed) for seed in range(30)]
    cloud, output = (sum(counts) for counts in zip(*counted, strict=True))
    # What the last answer wasted is the only thing that nobody has paid for.
    assert cloud <= INITIAL_CREDIT + 0.2 * output + max(wasted for wasted, _ in counted)
    assert cloud / output >= 0.1


def test_answers_side_by_side_share_the_one_initial_credit() -> None:
    budgets, policy = SharedBudget(), Policy(cloud_share=0.1)
    counted: list[tuple[int, int]] = []

    def answer_many(first: int) -> None:
        for seed in range(first, first + 10):
            counted.append(one(budgets, policy, 12, seed))

    threads = [threading.Thread(target=answer_many, args=(100 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cloud, output = (sum(counts) for counts in zip(*counted, strict=True))
    assert len(counted) == 60
    assert cloud <= INITIAL_CREDIT + 0.1 * output + 1e-6


def test_the_credit_is_taken_once_and_given_back() -> None:
    budgets = SharedBudget()
    first, second = budgets.take(), budgets.take()
    assert (first.credit, second.credit) == (INITIAL_CREDIT, 0.0)
    budgets.settle(second, Budget(credit=0.25, shift=-1.0))
    budgets.settle(first, Budget(credit=1.5, shift=0.5))
    third = budgets.take()
    assert (third.credit, third.shift) == (1.75, -0.5)


@given(st.lists(st.tuples(st.floats(-40, 40), st.floats(-40, 40)), max_size=20))
def test_savings_and_the_threshold_stay_in_bounds(left: Sequence[tuple[float, float]]) -> None:
    budgets = SharedBudget()
    for credit, shift in left:
        budgets.settle(budgets.take(), Budget(credit=credit, shift=shift))
    kept = budgets.take()
    assert kept.credit <= MAX_CREDIT
    assert abs(kept.shift) <= MAX_LOG_ODDS
