"""Policy: threshold, bucket, controller and the cap that is a promise."""

import math
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edgewise.errors import UsageError
from edgewise.loop.policy import INITIAL_CREDIT, Budget, Policy

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=300)


def run(policy: Policy, scores: Sequence[float]) -> int:
    """Cloud tokens over one answer in which every consult is answered in full."""
    budget, cloud, ahead = Budget(), 0, 0
    for score in scores:
        if not ahead:
            ahead = policy.decide(score, budget).ask
            budget = policy.charge(budget, ahead)
        by_cloud = ahead > 0
        cloud, ahead = cloud + by_cloud, ahead - by_cloud
        budget = policy.written(budget, by_cloud=by_cloud)
    return cloud


@given(SCORES, st.floats(0, 1))
def test_a_static_threshold_asks_from_the_threshold_on(scores: list[float], at: float) -> None:
    policy = Policy(threshold=at)
    for score in scores:
        assert (policy.decide(score, Budget()).ask > 0) == (score >= at)


@given(SCORES, st.floats(0.001, 0.999), st.integers(0, 9), st.integers(1, 5))
def test_the_cap_is_never_exceeded(scores: list[float], share: float, cap: int, span: int) -> None:
    policy = Policy(cloud_share=share, max_cloud_tokens=cap, span=span)
    assert run(policy, scores) <= cap


@given(SCORES, st.floats(0.001, 0.999), st.integers(1, 5))
def test_the_bucket_bounds_the_share(scores: list[float], share: float, span: int) -> None:
    policy = Policy(cloud_share=share, span=span)
    assert run(policy, scores) <= INITIAL_CREDIT + share * len(scores) + 1e-6


@given(SCORES)
def test_shares_of_nothing_and_of_everything(scores: list[float]) -> None:
    assert run(Policy(cloud_share=0.0), scores) == 0
    assert run(Policy(cloud_share=1.0), scores) == len(scores)


@pytest.mark.parametrize("share", [0.03, 0.07, 0.2])
def test_the_controller_finds_the_share(share: float) -> None:
    scores = [math.sin(i * 12.9898) * 43758.5453 % 1 for i in range(5000)]
    assert run(Policy(cloud_share=share), scores) / 5000 == pytest.approx(share, rel=0.1)


def test_the_cap_begins_anew_and_the_credit_carries_over() -> None:
    policy = Policy(cloud_share=0.1, max_cloud_tokens=1)
    spent = policy.charge(Budget(), 1)
    assert policy.decide(1.0, spent).reason == "cap"
    later = policy.next_answer(spent)
    assert policy.decide(1.0, later).ask == 1
    assert later.credit == spent.credit


@pytest.mark.parametrize(
    "bad",
    [
        {"threshold": -0.1},
        {"threshold": math.nan},
        {"cloud_share": 1.1},
        {"cloud_share": math.nan},
        {"max_cloud_tokens": -1},
        {"span": 0},
        {"deadline": 0.0},
        {"deadline": math.nan},
    ],
)
def test_bad_values_are_one_sentence(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must be"):
        Policy(**bad)  # type: ignore[arg-type]
