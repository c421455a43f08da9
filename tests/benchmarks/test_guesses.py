"""What each way to guess takes, on answers whose figures are known beforehand."""

import numpy as np
import pytest

from benchmarks.guesses import LONGEST, Link, Place, Run, Way, foresight
from benchmarks.redrafts import Redrafts
from edgewise_lab.bench.pace import Pace

STEP, TRIP = 0.02, 0.1
FLAT = Pace((1, 8), (STEP, STEP))
SLOW = Pace((1, 8), (STEP, 8 * STEP))
TOKENS = 12
ROUNDING = 1e-6


def place(rank: int | None = None, matches: int = 0) -> Place:
    return Place(rank, matches, 8, 0.0, 0.5, np.zeros(2, np.float32))


def seconds(way: Way, at: dict[int, Place], *, pace: Pace = FLAT, early: tuple[int, ...] = ()):
    answer = [at.get(index, place()) for index in range(TOKENS)]
    return Run(answer, way, Link(TRIP, pace, ROUNDING), Redrafts()).over(early).seconds


ALONE = STEP * (TOKENS - 1)
ONE = Way("one guess")


def test_without_a_consult_it_is_the_edge() -> None:
    assert seconds(ONE, {}) == pytest.approx(ALONE)


def test_a_confirmed_guess_costs_nothing_and_a_wrong_one_the_trip() -> None:
    assert seconds(ONE, {3: place(0)}) == pytest.approx(ALONE)
    assert seconds(ONE, {3: place(1)}) == pytest.approx(ALONE + TRIP)
    # The second left when the first had been guessed.
    assert seconds(ONE, {3: place(0), TOKENS - 1: place(2)}) == pytest.approx(ALONE + TRIP)
    assert seconds(ONE, {3: place(0), 4: place(0), 9: place(2)}) == pytest.approx(ALONE + TRIP)
    assert seconds(ONE, {3: place(0), 5: place(2)}) == pytest.approx(ALONE + TRIP)


def test_a_branch_that_the_completion_takes_costs_its_batch() -> None:
    two = Way("two", branches=2)
    assert seconds(two, {3: place(1)}) == pytest.approx(ALONE)
    assert seconds(two, {3: place(2)}) == pytest.approx(ALONE + TRIP)
    assert seconds(two, {3: place(0)}, pace=SLOW) > ALONE


def test_a_draft_saves_the_steps_that_it_gets_right() -> None:
    redraft = Way("redraft", redraft=True)
    ahead = round(TRIP / STEP)
    for matches in (0, 2, ahead):
        found = seconds(redraft, {3: place(2, matches)})
        assert found == pytest.approx(ALONE + TRIP - matches * STEP)
    assert seconds(redraft, {3: place(2)}, pace=SLOW) == pytest.approx(ALONE + TRIP + ahead * STEP)


def test_a_step_early_saves_a_step() -> None:
    early = Way("early", early=True)
    assert seconds(early, {3: place(1)}, early=(2,)) == pytest.approx(ALONE + TRIP - STEP)
    assert seconds(early, {3: place(1)}, early=(5,)) == pytest.approx(ALONE + TRIP)


def test_a_span_is_there_for_the_next() -> None:
    both = {3: place(1), 4: place(1)}
    assert seconds(ONE, both) == pytest.approx(ALONE + 2 * TRIP)
    assert seconds(Way("span", span=2), both) == pytest.approx(ALONE + TRIP)


def test_a_run_ahead_has_an_end() -> None:
    answer = [place(0), *[place()] * 39]
    late = Run(answer, ONE, Link(100 * STEP, FLAT, ROUNDING), Redrafts()).over(())
    assert late.seconds == pytest.approx(100 * STEP + (39 - LONGEST) * STEP)


def test_what_the_hidden_state_tells_is_foreseen() -> None:
    told = np.array([1.0, 0.0], np.float32)
    answer = [place()._replace(hidden=told if n % 4 == 2 else -told) for n in range(TOKENS)]
    answer = [one._replace(rank=0 if n % 4 == 3 else None) for n, one in enumerate(answer)]
    seen = foresight([answer] * 4, 0.9)
    assert seen == {(a, n) for a in range(4) for n in range(TOKENS - 1) if n % 4 == 2}
