"""What is computed once for many systems: each answers as it would alone."""

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.real_pair import SHARES, Measurement, table
from edgewise.addresses import bundled
from edgewise.pair import open_models
from edgewise.settings import Settings
from edgewise_lab.evaluation.plan import ORACLE
from edgewise_lab.evaluation.report import CLOUD
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.systems import Decoded, paired
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

SETTINGS = Settings(edge="bundled", cloud=str(bundled("cloud")), threads=1)


@pytest.mark.deep
def test_systems_answer_as_they_would_alone(tmp_path: Path) -> None:
    test, train = pocketqa("test").first(6), pocketqa("train").first(30)
    calibration = pocketqa("calibration").first(6)
    one = Measurement(SETTINGS, (test, calibration), train, tmp_path)
    routers = {name: one.router(name, {}) for name in ("text-ranks", "entropy", "random")}
    cells = [Cell(name, share) for name in routers for share in SHARES]
    systems = one.systems(routers, cells, oracle=True)
    one.answer(systems, until=float("inf"))
    found = one.done(systems)
    assert all(len(outcomes) == 6 for outcomes in found.values())
    assert len(table(found)) == 2 + len(found)
    right = {cell: sum(outcome.right for outcome in own) for cell, own in found.items()}
    assert right[ORACLE] >= right[CLOUD]
    assert len(one.timed(routers, cells, 2, trip=0.01)) == 4 + len(cells)
    with closing(open_models(SETTINGS)) as pair:
        edge, cloud = pair.both()
        for name, (router, identity) in routers.items():
            for share in SHARES:
                threshold = one.store.threshold(Cell(name, share), identity)
                assert threshold is not None
                alone = Decoded(paired(edge, router, threshold, cloud), test.max_tokens)
                texts = [outcome.text for outcome in found[Cell(name, share)]]
                assert texts == [alone.answer(question).text for question in test.questions]
