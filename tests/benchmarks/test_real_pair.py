"""What is computed once for many systems: each answers as it would alone."""

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.real_pair import SHARES, Measurement, table
from edgewise.addresses import bundled
from edgewise.pair import open_models
from edgewise.routers.named import identity_named, router_named
from edgewise.settings import Settings
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.systems import Decoded, paired
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

SETTINGS = Settings(edge="bundled", cloud=str(bundled("cloud")), threads=1)


@pytest.mark.deep
def test_systems_answer_as_they_would_alone(tmp_path: Path) -> None:
    test, train = pocketqa("test").first(6), pocketqa("train").first(30)
    calibration = pocketqa("calibration").first(6)
    one = Measurement(SETTINGS, (test, calibration), train, tmp_path)
    routers = {"text-ranks": one.trained(("text", "ranks"))}
    for name in ("entropy", "random"):
        routers[name] = router_named(name), identity_named(name)
    systems = one.systems(routers, [Cell(name, share) for name in routers for share in SHARES])
    one.answer(systems, until=float("inf"))
    found = one.done(systems)
    assert all(len(outcomes) == 6 for outcomes in found.values())
    assert len(table(found)) == 2 + len(found)
    with closing(open_models(SETTINGS)) as pair:
        edge, cloud = pair.both()
        for name, (router, identity) in routers.items():
            for share in SHARES:
                threshold = one.store.threshold(Cell(name, share), identity)
                assert threshold is not None
                alone = Decoded(paired(edge, router, threshold, cloud), test.max_tokens)
                texts = [outcome.text for outcome in found[Cell(name, share)]]
                assert texts == [alone.answer(question).text for question in test.questions]
