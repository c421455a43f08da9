"""What a link costs, on a clock of its own: figures that are known beforehand."""

import pytest

from benchmarks.verified_link import Differing, on_a_clock
from edgewise_lab.bench.link import Conditions, Way, step_of, time_over
from edgewise_lab.bench.pace import EnginePace

TOKENS, STEP, TRIP, PASS = 100, 0.015, 0.1, 0.02


@pytest.fixture(scope="module")
def ways() -> dict[str, Way]:
    pair = Differing(TOKENS, 0.03, 0.06)
    conditions = Conditions(TRIP, 0.0, 0.0)
    return on_a_clock(pair, conditions, STEP, EnginePace(first=PASS, read=0.0), 2)


def test_the_pair_differs_where_it_should(ways: dict[str, Way]) -> None:
    corrected = {name: way.total("correction_tokens") for name, way in ways.items()}
    assert (corrected["edge"], corrected["verify"], corrected["exact"]) == (0, 2 * 3, 2 * 6)
    assert corrected["waiting"] == corrected["verify"]
    assert [answer.text for answer in ways["waiting"].answers] == [
        answer.text for answer in ways["verify"].answers
    ]


def test_a_correction_costs_a_round_trip_and_the_drafts_behind_it(ways: dict[str, Way]) -> None:
    edge = ways["edge"]
    assert step_of(edge) == pytest.approx(STEP)
    times = {name: time_over(way, edge, edge).value for name, way in ways.items()}
    per = (TRIP + PASS) / STEP / TOKENS
    # The last block is waited for; a block of sixteen at most is written before it is sent.
    for name, corrections in (("verify", 3), ("exact", 6)):
        least = 1 + (corrections + 1) * per
        assert least - 0.1 < times[name] < least + (corrections + 1) * 16 / TOKENS
    assert times["verify"] < times["waiting"]


def test_the_clock_gives_the_same_again(ways: dict[str, Way]) -> None:
    pair = Differing(TOKENS, 0.03, 0.06)
    pace = EnginePace(first=PASS, read=0.0)
    again = on_a_clock(pair, Conditions(TRIP, 0.0, 0.0), STEP, pace, 2)
    for name, way in ways.items():
        assert [a.timing for a in way.answers] == [a.timing for a in again[name].answers]
