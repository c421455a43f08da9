"""Calibrated thresholds realise their share."""

import pytest

from edgewise.evaluation.calibration import thresholds_for
from edgewise.evaluation.systems import Decoded, changed_share, cloud_share, paired
from edgewise.evaluation.tasks.base import Question, Task
from edgewise.routers.named import router_named
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise

EDGE, CLOUD = ScriptedEdge(noise(1)), ScriptedCloud(noise(2))
TASK = Task(
    "noise", tuple(Question(f"{i}", "noise", f"question {i}", "", "exact") for i in range(12)), 96
)


@pytest.mark.parametrize("name", ["random", "max-prob", "margin", "entropy", "logtoku"])
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
