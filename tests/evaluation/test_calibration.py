"""Calibrated thresholds realise their share."""

import pytest

from edgewise.cloud.scripted import ScriptedCloud
from edgewise.edge.scripted import ScriptedEdge, noise
from edgewise.evaluation.calibration import threshold_for
from edgewise.evaluation.questions import Question
from edgewise.evaluation.systems import changed_share, cloud_share, outcomes, paired
from edgewise.registry import router_named

EDGE, CLOUD = ScriptedEdge(noise(1)), ScriptedCloud(noise(2))
QUESTIONS = [Question(f"{i}", "noise", "test", f"question {i}", "", "") for i in range(12)]


@pytest.mark.parametrize("name", ["random", "max-prob", "margin", "entropy", "logtoku"])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_the_share_asked_for_is_realised(name: str, share: float) -> None:
    router = router_named(name)
    threshold = threshold_for(share, router, QUESTIONS, edge=EDGE, cloud=CLOUD)
    found = outcomes(paired(EDGE, router, threshold, CLOUD), QUESTIONS)
    assert cloud_share(found) == pytest.approx(share, rel=0.2)
    changed = changed_share(found)
    assert changed is not None
    assert changed > 0.9


def test_without_consults_nothing_is_changed() -> None:
    found = outcomes(paired(EDGE, router_named("random"), 1.0, CLOUD), QUESTIONS)
    assert cloud_share(found) == 0
    assert changed_share(found) is None
