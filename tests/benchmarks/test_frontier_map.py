"""The map: what is fastest where follows from the formulas, and a point is really measured."""

from pathlib import Path

import pytest

from benchmarks.frontier_map.figure import draw
from benchmarks.frontier_map.inputs import Answers, Engine, Inputs
from benchmarks.frontier_map.points import Point, measured_point
from benchmarks.frontier_map.predicted import WAYS, Drafting, predicted
from edgewise_lab.bench.paced_engine import EnginePace

PACE = EnginePace()
AGREED = [True, True, True, False] * 9
INPUTS = Inputs(
    share=0.05,
    threshold=0.0205,
    prompts=[40, 44, 48],
    answers={name: Answers([36, 36, 36], 0.9) for name in ("edge", "larger edge", "pair", "cloud")},
    asked=0.05,
    changed=0.5,
    agreement=[AGREED] * 3,
    engine=Engine(consult=0.040, first=0.044, token=0.027),
)


def test_the_cloud_is_streamed_where_the_edge_is_slow() -> None:
    slow = predicted(INPUTS, PACE, 0.060, 0.050)
    assert slow.fastest() == "cloud"
    quick = predicted(INPUTS, PACE, 0.005, 0.0)
    assert quick.fastest() == "ahead"
    assert quick.fastest(("cloud", "speculation")) == "speculation"
    far = predicted(INPUTS, PACE, 0.005, 0.300)
    assert far.fastest() == "larger edge"
    for found in (slow, quick, far):
        assert set(WAYS) < set(found.seconds)
        assert found.seconds["edge"] < min(found.seconds[way] for way in ("larger edge", "ahead"))


def test_what_a_run_was_like_is_taken_into_account() -> None:
    plain = predicted(INPUTS, PACE, 0.020, 0.1)
    slower = predicted(INPUTS, PACE, 0.020, 0.1, slower=0.005, drafting=Drafting(4, False))
    assert slower.seconds["edge"] == pytest.approx(plain.seconds["edge"] + 0.005)
    assert slower.seconds["larger edge"] == pytest.approx(plain.seconds["larger edge"] + 0.005)
    assert slower.seconds["cloud"] == plain.seconds["cloud"]
    assert slower.seconds["speculation"] > plain.seconds["speculation"]


def test_the_map_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    grid = {
        (step, trip): predicted(INPUTS, PACE, step, trip)
        for step in (0.005, 0.03, 0.06)
        for trip in (0.0, 0.15, 0.3)
    }
    draw(grid, [(0.02, 0.1)], tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_a_point_is_measured() -> None:
    """Two questions, every way, over a link and a real engine."""
    point = Point(
        step=0.004,
        round_trip=0.02,
        threshold=0.0205,
        questions=2,
        draft=2,
        pipelined=True,
        pace=(0.01, 0.004, 0.0),
        sample=2,
    )
    found = measured_point(point)
    assert set(found.ways) == set(WAYS)
    for name, timed in found.ways.items():
        assert len(timed.seconds) == len(timed.tokens) == 2
        low, high = timed.interval
        assert low <= timed.per_token <= high, name
    # Its connection was made before, and is kept.
    assert found.ways["cloud"].opened == 0
    assert found.ways["cloud"].per_token >= 0.004
    assert found.ways["larger edge"].per_token >= 1.45 * 0.004
    assert found.slower >= 0
    assert found.engine.consult >= 0.01
