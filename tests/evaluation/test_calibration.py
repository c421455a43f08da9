"""Calibrated thresholds realise their share."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.edge.base import Needs, Step
from edgewise.errors import CloudUnavailable
from edgewise.evaluation.calibration import ROUNDS, SETTLED, reached_by, thresholds_for
from edgewise.evaluation.systems import Decoded, changed_share, cloud_share, paired
from edgewise.evaluation.tasks.base import Question, Task
from edgewise.routers.constant import Constant
from edgewise.routers.named import router_named
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise

EDGE, CLOUD = ScriptedEdge(noise(1)), ScriptedCloud(noise(2))
TASK = Task(
    "noise", tuple(Question(f"{i}", "noise", f"question {i}", "", "exact") for i in range(12)), 96
)


@pytest.mark.parametrize("name", ["random", "max-prob", "margin", "entropy"])
def test_the_share_asked_for_is_realised(name: str) -> None:
    router = router_named(name)
    points = thresholds_for((0.3, 0.05), router, TASK, edge=EDGE, cloud=CLOUD)
    assert points[0.05].threshold > points[0.3].threshold
    for share, point in points.items():
        system = Decoded(paired(EDGE, router, point.threshold, CLOUD), TASK.max_tokens)
        found = [system.answer(question) for question in TASK.questions]
        assert cloud_share(found) == point.share
        assert tuple(outcome.right for outcome in found) == point.right
        assert cloud_share(found) == pytest.approx(share, rel=0.2)
        changed = changed_share(found)
        assert changed is not None
        assert changed > 0.9


def test_without_consults_nothing_is_changed() -> None:
    never = paired(EDGE, router_named("random"), 1.0, CLOUD)
    found = [Decoded(never, 16).answer(TASK.questions[0])]
    assert cloud_share(found) == 0
    assert changed_share(found) is None


class Drifting:
    """Scores that rise where the edge would go on with an odd id, as what went before decides."""

    needs, top = Needs.NOTHING, 0

    def __init__(self, drift: float) -> None:
        self._drift = drift

    def score(self, step: Step) -> float:
        rng = np.random.default_rng([step.position, step.proposed])
        return min(1.0, 0.8 * float(rng.random()) + self._drift * (step.proposed % 2))


def test_scores_that_drift_are_estimated_anew() -> None:
    """The edge alone would give another threshold than the pair's own answers do."""
    router = Drifting(0.2)
    (point,) = thresholds_for([0.2], router, TASK, edge=EDGE, cloud=CLOUD).values()
    alone = Decoded(paired(EDGE, router, 1.0, CLOUD), TASK.max_tokens)
    scores = [
        token.score
        for question in TASK.questions
        for token in alone.ask(question).tokens
        if token.score is not None
    ]
    naive = paired(EDGE, router, reached_by(0.2, scores), CLOUD)
    found = [Decoded(naive, TASK.max_tokens).answer(question) for question in TASK.questions]
    assert abs(point.share - 0.2) <= abs(cloud_share(found) - 0.2)
    assert point.share == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_no_more_rounds_than_allowed(rounds: int) -> None:
    answers: list[None] = []
    thresholds_for(
        [0.1, 0.3],
        router_named("margin"),
        TASK,
        edge=EDGE,
        cloud=CLOUD,
        rounds=rounds,
        done=lambda: answers.append(None),
    )
    per_round = len(TASK.questions)
    assert len(answers) % per_round == 0
    assert 3 <= len(answers) // per_round <= 1 + 2 * rounds


def test_a_share_that_settles_at_once_costs_one_round() -> None:
    answers: list[None] = []
    (point,) = thresholds_for(
        [0.5], Constant(0.7), TASK, edge=EDGE, cloud=CLOUD, done=lambda: answers.append(None)
    ).values()
    assert point.threshold > 0.7  # all or nothing, and all would be too much
    assert point.share == 0.0
    assert len(answers) <= (1 + ROUNDS) * len(TASK.questions)


def test_shares_come_out_in_order_whatever_the_order_asked() -> None:
    found = thresholds_for((0.4, 0.05, 0.2), router_named("entropy"), TASK, edge=EDGE, cloud=CLOUD)
    assert list(found) == [0.05, 0.2, 0.4]
    thresholds = [point.threshold for point in found.values()]
    assert thresholds == sorted(thresholds, reverse=True)
    shares = [point.share for point in found.values()]
    assert shares == sorted(shares)
    for share, point in found.items():
        assert abs(point.share - share) <= max(5 * SETTLED, 0.2) * share


def test_the_same_comes_out_twice() -> None:
    one, other = (
        thresholds_for([0.1], router_named("max-prob"), TASK, edge=EDGE, cloud=CLOUD)
        for _ in range(2)
    )
    assert one == other


def test_a_cloud_that_fails_ends_the_calibration() -> None:
    gone = ScriptedCloud(noise(2), fault=lambda ask: CloudUnavailable("gone"))
    with pytest.raises(CloudUnavailable):
        thresholds_for([0.5], router_named("random"), TASK, edge=EDGE, cloud=gone)


@given(
    scores=st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=60),
    share=st.floats(0.001, 0.999),
)
def test_the_share_reaches_the_threshold_give_or_take_a_score(
    scores: Sequence[float], share: float
) -> None:
    threshold = reached_by(share, scores)
    assert 0 <= threshold <= 1
    reaching = [score for score in scores if score >= threshold]
    # Scores of exactly 1 reach any threshold.
    assert len(reaching) < share * len(scores) + 1 or set(reaching) == {1.0}
    below = [score for score in scores if score < threshold]
    assert not below or sum(score >= max(below) for score in scores) > share * len(scores)


def test_equal_scores_are_below_the_threshold() -> None:
    assert reached_by(0.5, [0.3] * 10) > 0.3
    assert 0.1 < reached_by(0.2, [0.1] * 8 + [0.9] * 2) <= 0.9
    assert reached_by(0.1, [0.1] * 8 + [0.9] * 2) > 0.9
