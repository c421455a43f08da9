"""Policy: threshold, bucket, controller, the cap that is a promise, and one budget for a pair."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import INITIAL_BUCKET, MAX_BUCKET, Budget, Policy, SharedBudget
from edgewise.routers.untrained import Random
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=300)


def run(policy: Policy, scores: Sequence[float]) -> int:
    """Cloud tokens over one answer in which every consult is answered in full."""
    budget, cloud, ahead = Budget(), 0, 0
    for score in scores:
        if not ahead:
            ahead = policy.decide(score, budget).ask
            budget = policy.charged(budget, ahead)
        by_cloud = ahead > 0
        cloud, ahead = cloud + by_cloud, ahead - by_cloud
        budget = policy.after_token(budget)
    return cloud


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_static_threshold_asks_from_the_threshold_on(score: float, at: float) -> None:
    assert (Policy(threshold=at).decide(score, Budget()).ask > 0) == (score >= at)


@given(SCORES, st.floats(0.001, 0.999), st.none() | st.integers(0, 9), st.integers(1, 5))
def test_the_bucket_bounds_the_share_and_the_cap_the_answer(
    scores: list[float], share: float, cap: int | None, span: int
) -> None:
    wrote = run(Policy(cloud_share=share, max_cloud_tokens=cap, span=span), scores)
    assert wrote <= INITIAL_BUCKET + share * len(scores) + 1e-6
    assert cap is None or wrote <= cap


@given(SCORES)
def test_shares_of_nothing_and_of_everything(scores: list[float]) -> None:
    assert run(Policy(cloud_share=0.0), scores) == 0
    assert run(Policy(cloud_share=1.0), scores) == len(scores)


@pytest.mark.parametrize("share", [0.03, 0.07, 0.2])
def test_the_controller_finds_the_share(share: float) -> None:
    scores = [math.sin(i * 12.9898) * 43758.5453 % 1 for i in range(5000)]
    wrote = run(Policy(cloud_share=share), scores)
    assert wrote == pytest.approx(share * 5000, abs=INITIAL_BUCKET)


@given(
    st.lists(st.tuples(SCORES, st.integers(0, 3)), max_size=40),
    st.floats(0.01, 0.99),
    st.floats(0.01, 0.5),
)
def test_neither_waste_nor_refusals_drive_the_threshold_away(
    answers: list[tuple[list[float], int]], calibrated: float, share: float
) -> None:
    """Only tokens move it: below the calibrated one while some are saved, never for a refusal."""
    policy, budgets = Policy(threshold=calibrated, cloud_share=share), SharedBudget()
    earned = charged = 0.0
    for scores, wasted in answers:
        taken = budget = budgets.take()
        if charged >= earned:
            assert policy.threshold_now(budget) >= calibrated - 1e-9
        for score in scores:
            decision = policy.decide(score, budget)
            budget = policy.after_token(policy.charged(budget, decision.ask))
            earned, charged = earned + share, charged + decision.ask
        budgets.settle(taken, policy.next_answer(budget, wasted))
        charged += wasted
    moved = odds(policy.threshold_now(budgets.take())) / odds(calibrated)
    assert moved >= math.exp(-0.1 * (MAX_BUCKET - INITIAL_BUCKET)) - 1e-9


def odds(part: float) -> float:
    return part / (1 - part)


def test_one_consult_shuts_out_no_other() -> None:
    policy = Policy(threshold=0.2, cloud_share=0.05)
    after = policy.after_token(policy.charged(Budget(), 1))
    assert policy.threshold_now(Budget()) == pytest.approx(0.2)
    assert policy.decide(0.22, after).ask == 1
    # Answers side by side start at the same threshold.
    budgets = SharedBudget()
    for _ in range(4):
        assert policy.threshold_now(budgets.take()) == pytest.approx(0.2)


def test_the_cap_begins_anew_and_the_bucket_carries_over() -> None:
    policy = Policy(cloud_share=0.1, max_cloud_tokens=1)
    spent = policy.charged(Budget(), 1)
    assert policy.decide(1.0, spent).reason == "cap"
    later = policy.next_answer(spent)
    assert policy.decide(1.0, later).ask == 1
    assert later.bucket == spent.bucket


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


def one(budgets: SharedBudget, policy: Policy, tokens: int, seed: int) -> tuple[int, int]:
    """Cloud tokens, used and wasted, and output tokens of an answer on the budgets."""
    edge, cloud = ScriptedEdge(noise(seed)), ScriptedCloud(noise(seed + 1), delay=0.002)
    decoder, taken = Decoder(edge, router=Random(seed), policy=policy, cloud=cloud), budgets.take()
    events = decoder.stream(b"Q: sky? A:", max_tokens=tokens, budget=taken)
    usage = collect(events).usage
    budgets.settle(taken, events.budget)
    return usage.cloud_tokens + usage.wasted_tokens, usage.edge_tokens + usage.cloud_tokens


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.sampled_from([0, 12]),
)
def test_answers_one_after_the_other_keep_the_share(
    lengths: list[int], share: float, speculate: int
) -> None:
    budgets, policy = SharedBudget(), Policy(cloud_share=share, speculate=speculate)
    counted = [one(budgets, policy, length, seed) for seed, length in enumerate(lengths)]
    cloud, output = (sum(counts) for counts in zip(*counted, strict=True))
    # What the last answer's drafts wasted is the only thing that nobody has paid for.
    unpaid = max(wasted for wasted, _ in counted) if speculate else 0
    assert cloud <= INITIAL_BUCKET + share * output + unpaid + 1e-6


def test_answers_side_by_side_share_the_one_initial_bucket() -> None:
    budgets, policy = SharedBudget(), Policy(cloud_share=0.1)
    with ThreadPoolExecutor(6) as pool:
        counted = list(pool.map(lambda seed: one(budgets, policy, 12, seed), range(60)))
    cloud, output = (sum(counts) for counts in zip(*counted, strict=True))
    assert cloud <= INITIAL_BUCKET + 0.1 * output + 1e-6


def test_half_of_the_bucket_is_taken_and_what_is_left_given_back() -> None:
    budgets = SharedBudget()
    first, second = budgets.take(), budgets.take()
    assert (first.bucket, second.bucket) == (INITIAL_BUCKET / 2, INITIAL_BUCKET / 4)
    budgets.settle(second, Budget(bucket=0.5))
    budgets.settle(first, Budget(bucket=1.5))
    third = budgets.take()
    assert third.bucket + third.reserve == INITIAL_BUCKET / 4 + 2
    budgets.settle(third, Budget(bucket=-9.0))
    assert budgets.take().bucket == INITIAL_BUCKET / 8 + 1 - 9


@given(st.lists(st.floats(-400, 400), max_size=20))
def test_savings_stay_in_bounds(left: Sequence[float]) -> None:
    budgets = SharedBudget()
    for tokens in left:
        budgets.settle(budgets.take(), Budget(bucket=tokens))
    kept = budgets.take()
    assert kept.bucket + kept.reserve <= MAX_BUCKET


def test_what_is_kept_of_the_bucket_is_not_what_answers_at_work_have_spent() -> None:
    """An interrupted evaluation goes on from `level`: what was not stored is asked again."""
    budgets, policy = SharedBudget(), Policy(cloud_share=0.1, verify="on")
    first, second = budgets.take(), budgets.take()
    budgets.follow(policy.charged(second, 40))
    assert budgets.follow(first).reserve == INITIAL_BUCKET - first.bucket - 40
    budgets.settle(first, first)
    assert budgets.level == INITIAL_BUCKET
    assert budgets.take().reserve < 0


def test_what_easy_answers_earn_beyond_the_bucket_pays_for_no_other() -> None:
    """It is lost at their ends, and then the debt is left."""
    budgets = SharedBudget(MAX_BUCKET)
    taken = [budgets.take() for _ in range(8)]
    for one in taken[1:]:
        budgets.follow(one.plus(30))
    hard = budgets.follow(Policy(cloud_share=0.1).charged(taken[0], 200))
    assert hard.bucket + hard.reserve == taken[0].bucket - 200 + MAX_BUCKET
