"""What an evaluation warns of: routers far from the questions they were made for."""

import pytest

from edgewise.routers.card import RouterCard
from edgewise.routers.untrained import Constant
from edgewise_lab.evaluation.plan import Contender, warnings
from edgewise_lab.evaluation.report import CLOUD, EDGE, Row, rows
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.systems import Outcome
from edgewise_lab.evaluation.tasks.base import Question, Task
from tests.evaluation.outcomes import outcome

ANIMALS = Task("animals", (Question("q", "f", "Which?", "dog", "exact"),), 8)


def contender(trained_on: str = "", calibrated_on: str = "") -> Contender:
    card = RouterCard(
        kind="mlp",
        edge_fingerprint="",
        tokenizer_fingerprint="",
        hidden_size=1,
        trained_on=trained_on,
        calibrated_on=calibrated_on,
    )
    return Contender("mine", Constant(0.5), card)


def outcomes(*cloud: int) -> list[Outcome]:
    return [outcome(i, output_tokens=100, cloud_tokens=n) for i, n in enumerate(cloud)]


def table(cell: Cell, *cloud: int) -> list[Row]:
    n = len(cloud)
    return rows({EDGE: outcomes(*[0] * n), CLOUD: outcomes(*[100] * n), cell: outcomes(*cloud)})


@pytest.mark.parametrize(
    ("trained", "calibrated", "named"),
    [
        ("animals, 40 questions", "animals, 20 other questions", None),
        ("plants, 40 questions", "animals, 20 other questions", "trained on plants, 40 questions"),
        ("", "plants, 20 other questions", "calibrated on plants, 20 other questions"),
        ("animals, wild, 9 questions", "", "trained on animals, wild, 9 questions"),
        ("", "", None),
    ],
)
def test_a_router_made_for_other_questions(
    trained: str, calibrated: str, named: str | None
) -> None:
    told = warnings(ANIMALS, [contender(trained, calibrated)], table(Cell("mine", 0.05), 5, 5))
    if named is None:
        assert told == []
    else:
        (sentence,) = told
        assert sentence.startswith(f"The router 'mine' was {named}, not on animals: ")


@pytest.mark.parametrize(
    ("cloud", "far"),
    [
        ([5] * 20, False),
        ([6] * 20, False),  # 20% above
        ([7] * 20, True),  # 40% above
        ([3] * 20, True),
        ([0, 14, 0, 14], False),  # 40% above too, but so few questions cannot tell
    ],
)
def test_a_share_that_is_missed_beyond_chance(cloud: list[int], far: bool) -> None:
    told = warnings(ANIMALS, [], table(Cell("entropy", 0.05), *cloud))
    assert bool(told) == far
    if far:
        share = sum(cloud) / len(cloud) / 100
        assert f"{share:.1%}" in told[0]


def test_every_share_that_is_missed_is_in_one_sentence() -> None:
    found = {EDGE: outcomes(*[0] * 9), CLOUD: outcomes(*[100] * 9)}
    found |= {Cell("margin", share): outcomes(*[20] * 9) for share in (0.05, 0.1, 0.2)}
    (sentence,) = warnings(ANIMALS, [], rows(found))
    assert sentence.count("20.0%") == 2


def test_whole_questions_stay_below_a_share() -> None:
    assert warnings(ANIMALS, [], table(Cell("query-level", 0.05), *[1] * 20)) == []
