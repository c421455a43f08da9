"""What a link costs, on a clock of its own: figures that are known beforehand."""

import pytest

from benchmarks.exact_link import Compared, Margin
from benchmarks.one_machine import Written, passes
from benchmarks.verified_link import Differing, on_a_clock
from edgewise.errors import Fault
from edgewise.events import Event, Finished, Reason, Timing, Token, Usage
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


def test_passes_of_blocks_in_turns() -> None:
    """The first token goes alone; what is drafted behind a correction is drafted again."""
    answer = [Written(at in (0, 4), 0.5 if at == 2 else 0.9) for at in range(10)]
    assert passes(answer, 4, doubt=False) == (10, (1,) * 10, (1, 4, 4, 1))
    assert passes(answer, 4, doubt=True) == (10, (1,) * 12, (1, 2, 4, 4, 1))
    assert passes([], 4, doubt=True) == (0, (), ())


def told(*ids: int, reason: Reason | Fault = "verified") -> list[Event]:
    """The events of an answer."""

    tokens = [
        Token(
            index=index,
            id=token,
            text="",
            source="edge",
            score=None,
            logprob=None,
            seconds=0.0,
            wait=0.0,
            reason=reason,
        )
        for index, token in enumerate(ids)
    ]
    end = Finished(
        text="", finish_reason="stop", usage=Usage(prompt_tokens=0, cloud_calls=2), timing=Timing()
    )
    return [*tokens, end]


def test_what_differs_is_a_tie_partly_verified_or_wrong() -> None:
    found = Compared()

    def by(margin: float) -> Margin:
        return lambda before, one, other: margin if (before, one, other) == ([1], 2, 3) else 9.0

    found.add("equal", told(1, 2), [1, 2], by(0.0))
    found.add("partly", told(1, 3, reason="timeout"), [1, 2], by(0.0))
    found.add("tie", told(1, 3), [1, 2], by(0.1))
    found.add("wrong", told(1, 3), [1, 2], by(1.0))
    found.add("short", told(1), [1, 2], by(0.0))
    assert (found.questions, found.equal, found.partly, found.calls) == (5, 1, 1, 10)
    assert (found.ties, found.wrong) == ([0.1], ["wrong", "short"])
    assert found.tokens == {"verified": 7, "timeout": 2}
