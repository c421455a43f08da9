"""The table of consults, end to end on the bundled pair."""

import pytest

from benchmarks.consults import CURVE, SPREAD, main
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa


def test_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--questions", "1", "--calibration", "2", "--share", "0.1", "--routers", "entropy"])
    spreads, curves, said = capsys.readouterr().out.split("\n\n")
    families = pocketqa("test").families
    rows = [line.strip("| ").split(" | ") for line in spreads.splitlines()]
    assert tuple(rows[0]) == SPREAD
    assert [row[1] for row in rows[2:]] == [*families, "all"]
    assert int(rows[-1][2]) == len(families)
    assert all(len(row) == len(SPREAD) for row in rows[2:])
    drawn = [line.strip("| ").split(" | ") for line in curves.splitlines()]
    assert tuple(drawn[0]) == CURVE
    highest = [float(row[1].split()[-1]) for row in drawn[2:]]
    assert highest == sorted(highest, reverse=True)
    assert "1 test questions of each family" in said
