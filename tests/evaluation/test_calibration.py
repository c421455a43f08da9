"""Calibrated thresholds realise their share."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgewise.edge.base import Floats, Needs, Step
from edgewise.errors import CloudError, CloudTimeout
from edgewise.routers.named import router_named
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, Script, ScriptedEdge, noise
from edgewise_lab.evaluation.calibration import Answers, thresholds_for
from edgewise_lab.evaluation.systems import (
    Decoded,
    changed_share,
    cloud_share,
    outcome_of,
    paired,
)
from edgewise_lab.evaluation.tasks.base import Question, Task

EDGE, CLOUD = ScriptedEdge(noise(1)), ScriptedCloud(noise(2))
TASK = Task(
    "noise", tuple(Question(f"{i}", "noise", f"question {i}", "", "exact") for i in range(12)), 96
)


@pytest.mark.parametrize("name", ["random", "max-prob", "margin", "entropy"])
def test_the_share_asked_for_is_realised(name: str) -> None:
    router = router_named(name)
    points = thresholds_for((0.3, 0.05), Answers(router, TASK, edge=EDGE, cloud=CLOUD))
    assert list(points) == [0.05, 0.3]
    assert points[0.05].threshold > points[0.3].threshold
    for share, point in points.items():
        system = Decoded(paired(EDGE, router, point.threshold, CLOUD), TASK.max_tokens)
        found = [system.answer(question) for question in TASK.questions]
        assert cloud_share(found) == point.share
        assert cloud_share(found) == pytest.approx(share, rel=0.2)
        changed = changed_share(found)
        assert changed is not None
        assert changed > 0.9


def half(script: Script, ids: slice) -> Script:
    """The same, written with these ids alone."""

    def masked(before: Sequence[int]) -> Floats:
        logits = np.full_like(script(before), -50)
        logits[ids] = script(before)[ids]
        return logits

    return masked


class Contagious:
    """Scores that are higher after a token of the cloud's, so that one consult brings another."""

    needs, top = Needs.HIDDEN, 0

    def __init__(self, drift: float) -> None:
        self._drift = drift

    def score(self, step: Step) -> float:
        rng = np.random.default_rng([step.position, step.proposed])
        by_cloud = step.hidden[1] >= 128
        return (1 - self._drift) * float(rng.random()) + self._drift * bool(by_cloud)


@pytest.mark.parametrize("share", [0.03, 0.1, 0.2])
def test_a_share_that_swings_with_the_threshold_is_met(share: float) -> None:
    """Each threshold taken from the scores of the one before alternates: too many, too few."""
    edge = ScriptedEdge(half(noise(1), slice(0, 128)))
    cloud = ScriptedCloud(half(noise(2), slice(128, EOS)))
    answers = Answers(Contagious(0.4), TASK, edge=edge, cloud=cloud)
    (point,) = thresholds_for([share], answers).values()
    assert point.share == pytest.approx(share, rel=0.1)
    low, high = point.interval
    assert 0 <= low < point.share < high


class Counted:
    """How many answers were made."""

    def __init__(self) -> None:
        self.count = self.total = 0

    def __call__(self, total: int = 0) -> None:
        self.count += 1
        self.total = total


@pytest.mark.parametrize("rounds", [1, 4])
def test_no_more_rounds_than_allowed(rounds: int) -> None:
    made = Counted()
    answers = Answers(router_named("margin"), TASK, edge=EDGE, cloud=CLOUD, done=made)
    thresholds_for([0.1, 0.3], answers, rounds)
    assert made.count <= (1 + 2 * rounds) * len(TASK.questions)


def test_where_all_scores_are_alike_it_is_all_or_nothing() -> None:
    made = Counted()
    answers = Answers(Constant(0.7), TASK, edge=EDGE, cloud=CLOUD, done=made)
    point = thresholds_for([0.4], answers)[0.4]
    assert point.threshold > 0.7  # all would be further from what was asked for
    assert (point.share, point.interval) == (0.0, (0.0, 0.0))
    assert made.count == 2 * len(TASK.questions)


@given(thresholds=st.lists(st.floats(0.3, 1) | st.sampled_from([0.5, 1.0]), min_size=1, max_size=6))
def test_an_answer_that_is_reused_is_the_one_that_would_be_made(thresholds: list[float]) -> None:
    router, made, task = Contagious(0.2), Counted(), replace(TASK, max_tokens=24).first(3)
    answers = Answers(router, task, edge=EDGE, cloud=CLOUD, done=made)
    for threshold in thresholds:
        system = Decoded(paired(EDGE, router, threshold, CLOUD), task.max_tokens)
        anew = [replace(outcome_of(q, system.ask(q)), seconds=0.0) for q in task.questions]
        assert [replace(one.outcome, seconds=0.0) for one in answers.at(threshold).answers] == anew
    once = made.count
    for threshold in thresholds:
        for one in answers.at(threshold).answers:
            assert one.low < threshold <= one.high
    assert made.count == once <= len(set(thresholds)) * len(task.questions)


def failing_at(question: int, times: float) -> tuple[ScriptedCloud, Sequence[int]]:
    """A cloud that fails so many times at consults about a question."""
    failed: list[int] = []

    def fault(ask: int) -> CloudError | None:
        asked = bytes(token for token in cloud.asks[ask][0] if token < 256)
        if f"question {question}".encode() not in asked or len(failed) >= times:
            return None
        failed.append(ask)
        return CloudTimeout("No answer.")

    cloud = ScriptedCloud(noise(2), fault=fault)
    return cloud, failed


def test_a_question_at_which_the_cloud_fails_is_left_out() -> None:
    """What it was asked for the others is not lost; one more than is allowed raises."""
    router, one = router_named("margin"), TASK.questions[7]
    cloud, failed = failing_at(7, math.inf)
    answers = Answers(router, TASK, edge=EDGE, cloud=cloud, may_lose=1)
    point = thresholds_for([0.2], answers)[0.2]
    assert (list(answers.lost), len(failed)) == ([one.id], 1)
    assert f"'{one.id}'" in answers.lost[one.id]
    assert len(answers.at(point.threshold).answers) == len(TASK.questions) - 1
    assert point.share == pytest.approx(0.2, rel=0.2)
    with pytest.raises(CloudTimeout, match="'7'") as raised:
        thresholds_for([0.2], Answers(router, TASK, edge=EDGE, cloud=cloud))
    assert raised.value.setting == "deadline"


def test_a_later_run_makes_what_is_missing(tmp_path: Path) -> None:
    """The same, by several at a time too."""
    router, kept, whole, rest = router_named("margin"), tmp_path / "kept", Counted(), Counted()
    found = thresholds_for([0.1, 0.2], Answers(router, TASK, edge=EDGE, cloud=CLOUD, done=whole))
    assert whole.total >= whole.count

    def made(cloud: ScriptedCloud, **more: Any) -> Answers:
        return Answers(router, TASK, edge=EDGE, cloud=cloud, done=rest, **more)

    with pytest.raises(CloudTimeout):
        thresholds_for([0.1, 0.2], made(failing_at(7, 1)[0], file=kept))
    before = rest.count
    assert before > len(TASK.questions)
    for _ in range(2):
        assert thresholds_for([0.1, 0.2], made(CLOUD, file=kept)) == found
        assert rest.count == whole.count
    texts = {json.loads(line)["outcome"]["text"] for line in kept.read_text().splitlines()}
    assert texts == {""}, "what was said stays out of it"
    assert thresholds_for([0.1, 0.2], made(CLOUD, workers=4)) == found
