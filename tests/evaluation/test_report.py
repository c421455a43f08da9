"""From outcomes to figures, their intervals, and what an evaluation warns of."""

import json
import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.routers.card import RouterCard
from edgewise.routers.untrained import Constant
from edgewise_lab.evaluation.plan import Contender, warnings
from edgewise_lab.evaluation.report import CLOUD, EDGE, Figures, Row, as_json, rows
from edgewise_lab.evaluation.statistics import (
    difference_interval,
    gap_recovered,
    mean_interval,
    median_interval,
    ratio_interval,
)
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.systems import Outcome
from edgewise_lab.evaluation.tasks.base import Question, Task
from tests.evaluation.outcomes import outcome

PAIR = Cell("pair", 0.1)


def outcomes(right: str, *, family: str = "f", cloud: int = 0, **more: float) -> list[Outcome]:
    """One answer of ten tokens a letter; x is right, X strictly so."""
    return [
        outcome(
            f"{family}{i}",
            family=family,
            right=letter in "xX",
            strict=letter == "X",
            cloud_tokens=cloud,
            consults=cloud,
            changed=cloud // 2,
            cached=3 * cloud,
            computed=cloud,
            seconds=0.5,
            **more,
        )
        for i, letter in enumerate(right)
    ]


FOUND = {EDGE: outcomes("x..."), CLOUD: outcomes("xX.x", cloud=10), PAIR: outcomes("Xx..", cloud=2)}


def figures(cell: Cell, found: dict[Cell, list[Outcome]] = FOUND) -> Figures:
    return rows(found)[list(found).index(cell)].overall


def test_the_figures_of_a_pair() -> None:
    pair = figures(PAIR)
    assert (pair.questions, pair.accuracy, pair.strict_accuracy) == (4, 0.5, 0.25)
    assert (pair.cloud_share, pair.cloud_tokens, pair.cloud_calls) == (0.2, 8, 8)
    assert pair.changed == 0.5
    assert (pair.prompt_cached, pair.prompt_computed) == (24, 8)
    assert pair.tokens_per_second == 20.0
    assert pair.gap_recovered == pytest.approx(0.5)  # one of the two that only the cloud gets
    assert pair.interval[0] <= 0.5 <= pair.interval[1]
    assert pair.gain_interval[0] <= 0.25 <= pair.gain_interval[1]


def test_both_readings_stand_side_by_side() -> None:
    """Strictly the cloud gains one on the edge, and the pair the same one on it."""
    pair = figures(PAIR)
    assert (pair.strict_accuracy, pair.strict_gap_recovered) == (0.25, 1.0)
    assert pair.strict_interval[0] <= 0.25 <= pair.strict_interval[1]
    assert pair.strict_gain_interval[0] <= 0.25 <= pair.strict_gain_interval[1]
    assert pair.strict_gap_interval is not None
    assert [figures(cell).strict_accuracy for cell in (EDGE, CLOUD)] == [0.0, 0.25]


def test_what_the_cloud_reads_is_work_as_well_as_what_it_writes() -> None:
    """Two tokens an answer after two prompt tokens, of ten after ten; what was wasted counts."""
    assert [figures(cell).cloud_work for cell in (EDGE, CLOUD, PAIR)] == [0.0, 1.0, 0.2]
    pair = figures(PAIR, FOUND | {PAIR: outcomes("Xx..", cloud=2, wasted_tokens=1)})
    assert (pair.cloud_tokens, pair.wasted_tokens) == (8, 4)
    assert pair.cloud_share == pytest.approx(0.3)
    assert pair.cloud_work == pytest.approx(0.25)
    assert pair.cloud_share_interval == pytest.approx((0.3, 0.3))
    # A verdict is, too: ten tokens of JSON, two in the answer; one consult gave nothing.
    pair = figures(PAIR, FOUND | {PAIR: outcomes("Xx..", cloud=2, written=10, failed=1)})
    assert (pair.written, pair.cloud_tokens, pair.failed_calls) == (40, 8, 4)
    assert pair.cloud_share == 0.2
    assert pair.cloud_work == pytest.approx(12 / 20)


@pytest.mark.parametrize("unmetered", [CLOUD, PAIR])
def test_without_a_meter_nobody_knows_what_was_read(unmetered: Cell) -> None:
    first, *others = FOUND[unmetered]
    silent = msgspec.structs.replace(first, cached=None, computed=None)
    found = FOUND | {unmetered: [silent, *others]}
    told = figures(unmetered, found)
    assert (told.prompt_cached, told.prompt_computed, told.cloud_work) == (None, None, None)
    assert figures(PAIR, found).cloud_work is None


def test_the_gap_is_of_all_questions_whatever_their_families() -> None:
    """A family without a gap counts too, and a small one little."""
    cells = ((EDGE, "....", "xx", 0), (CLOUD, "xxX.", "xx", 10), (PAIR, "xx..", "x.", 1))
    found = {
        cell: outcomes(one, family="a", cloud=c) + outcomes(other, family="b", cloud=c)
        for cell, one, other, c in cells
    }
    row = rows(found)[2]
    assert row.overall.gap_recovered == pytest.approx(1 / 3)
    # Of six, the second of family b: the edge alone has it.
    assert row.overall.worse == pytest.approx(1 / 6)
    assert list(row.families) == ["a", "b"]
    assert (row.families["a"].questions, row.families["b"].questions) == (4, 2)
    assert row.families["a"].gap_recovered == pytest.approx(2 / 3)
    assert row.families["b"].gap_recovered is None


@given(
    right=st.lists(st.tuples(*[st.sampled_from(".x")] * 3), min_size=1, max_size=12),
    tokens=st.integers(0, 10),
)
def test_whatever_was_right_the_figures_hold_together(
    right: list[tuple[str, str, str]], tokens: int
) -> None:
    edge, cloud, pair = ("".join(column) for column in zip(*right, strict=True))
    written = (outcomes(edge), outcomes(cloud, cloud=10), outcomes(pair, cloud=tokens))
    for row in rows(dict(zip((EDGE, CLOUD, PAIR), written, strict=True))):
        told = row.overall
        assert told.interval[0] <= told.accuracy <= told.interval[1]
        assert 0 <= told.cloud_share <= 1
        assert told.strict_accuracy <= told.accuracy
        assert (told.gap_recovered is None) == (cloud.count("x") <= edge.count("x"))
        assert told.cloud_share_interval[0] <= told.cloud_share <= told.cloud_share_interval[1]
        assert row.families["f"] == told


def test_json_holds_every_figure_of_every_family() -> None:
    table = rows(FOUND | {Cell("pair", 0.5): outcomes("xxxx", cloud=9)}, PAIR)
    told = json.loads(as_json("animals", table, known=False, warnings=["far"], main=PAIR))
    systems = told.pop("systems")
    assert told == {
        "task": "animals",
        "measure": "agreement",
        "warnings": ["far"],
        "main": {"system": "pair", "share": 0.1},
    }
    assert [(one["system"], one["cloud_share_asked"]) for one in systems] == [
        *(("edge", None), ("cloud", None), ("pair", 0.1), ("pair", 0.5))
    ]
    for row, one in zip(table, systems, strict=True):
        found = [one.pop("families"), one]
        assert found == json.loads(msgspec.json.encode([row.families, row.overall]))
    assert systems[2]["difference"] == 0
    assert json.loads(as_json("animals", table))["measure"] == "accuracy"


def test_replies_that_were_cut_are_told_and_those_to_be_read_count_in_neither_reading() -> None:
    def more(right: str) -> list[Outcome]:
        return [
            *outcomes(right),
            outcome("poem", family="poems", right=False, to_read=True, cut=True),
            outcome("f9", family="f", right=False, to_read=True),
        ]

    found = {EDGE: more("x..."), CLOUD: more("xXxx"), PAIR: more("xX..")}
    pair = figures(PAIR, found)
    assert (pair.questions, pair.to_read, pair.accuracy) == (6, 2, 0.5)
    assert pair.cut == pytest.approx(1 / 6)
    assert pair.gap_recovered == pytest.approx(1 / 3)
    assert list(rows(found)[2].families) == ["f"]


def test_kept_outcomes_of_before_are_whole() -> None:
    kept = msgspec.to_builtins(outcome())
    del kept["cut"], kept["to_read"], kept["grader"]
    assert msgspec.convert(kept, Outcome) == outcome(cut=False, to_read=False)


def rights(count: int, of: int = 100) -> list[bool]:
    return [True] * count + [False] * (of - count)


def test_the_interval_of_a_difference() -> None:
    low, high = difference_interval(rights(60), rights(0))
    assert low < 0.6 < high
    # 1.96 standard errors of a proportion on each side
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.6 * 0.4 / 100), abs=0.02)


def test_the_gap_recovered() -> None:
    found = gap_recovered(rights(20), rights(50), rights(80))
    assert found is not None
    value, (low, high) = found
    assert value == pytest.approx(0.5)
    assert low < 0.5 < high
    # The pair's 30 gains among the cloud's 60: given those 60, a proportion of one half.
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 60), abs=0.03)


def test_the_interval_of_a_median() -> None:
    values = [float(value) for value in range(1, 102)]
    low, high = median_interval([*values, 1e9])
    # The median is between order statistics about sqrt(n) on each side of the middle one.
    assert 38 <= low < 51 < high <= 64
    assert median_interval([0.5] * 9) == (0.5, 0.5)


def test_the_interval_of_a_share_is_of_its_questions() -> None:
    """Tokens over tokens: a long answer weighs more, and answers alike leave no doubt."""
    assert ratio_interval([1, 2, 3], [10, 20, 30]) == pytest.approx((0.1, 0.1))
    low, high = ratio_interval([0, 30] * 50, [100, 100] * 50)
    assert low < 0.15 < high
    # A mean of 100 draws from {0, 0.3}.
    assert high - low == pytest.approx(2 * 1.96 * 0.15 / 10, rel=0.05)


paired_answers = st.lists(st.tuples(*[st.booleans()] * 3), min_size=1, max_size=30)


def columns(rows: list[tuple[bool, bool, bool]]) -> list[list[bool]]:
    return [list(column) for column in zip(*rows, strict=True)]


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_the_interval_of_a_mean_holds_it(right: list[bool]) -> None:
    low, high = mean_interval(right)
    mean = sum(right) / len(right)
    assert 0 <= low <= mean <= high <= 1
    assert (low == high) == (len(set(right)) == 1)
    assert mean_interval(right) == (low, high)  # from a seed


@given(paired_answers)
def test_a_difference_turns_round(rows: list[tuple[bool, bool, bool]]) -> None:
    one, other, same = columns(rows)
    low, high = difference_interval(one, other)
    mean = (sum(one) - sum(other)) / len(one)
    assert low <= mean + 1e-9
    assert mean - 1e-9 <= high
    back = difference_interval(other, one)
    assert back == pytest.approx((-high, -low), abs=2 / len(one))
    assert difference_interval(same, same) == (0.0, 0.0)


@given(paired_answers)
def test_the_gap_is_a_fraction_of_its_ends(rows: list[tuple[bool, bool, bool]]) -> None:
    edge, pair, cloud = columns(rows)
    found = gap_recovered(edge, pair, cloud)
    assert (found is None) == (sum(cloud) <= sum(edge))
    if found is not None:
        value, (low, high) = found
        assert value == pytest.approx((sum(pair) - sum(edge)) / (sum(cloud) - sum(edge)))
        assert low <= value <= high


ANIMALS = Task("animals", (Question("q", "f", "Which?", "dog", "exact"),), 8)


def contender(**told: str) -> Contender:
    sizes = {"edge_fingerprint": "", "tokenizer_fingerprint": "", "hidden_size": 1}
    return Contender("mine", Constant(0.5), RouterCard(kind="mlp", **sizes, **told))


def spent(*cloud: int) -> list[Outcome]:
    return [outcome(i, output_tokens=100, cloud_tokens=n) for i, n in enumerate(cloud)]


def table(name: str, *cloud: int, shares: Sequence[float] = (0.05,)) -> list[Row]:
    found = {EDGE: spent(*[0 for _ in cloud]), CLOUD: spent(*[100 for _ in cloud])}
    return rows(found | {Cell(name, share): spent(*cloud) for share in shares})


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
    made = contender(trained_on=trained, calibrated_on=calibrated)
    told = warnings(ANIMALS, [made], table("mine", 5, 5))
    assert len(told) == (named is not None)
    if named is not None:
        assert told[0].startswith(f"The router 'mine' was {named}, not on animals: ")


@pytest.mark.parametrize(
    ("cloud", "far"),
    [
        ([5] * 20, None),
        ([6] * 20, None),  # 20% above
        ([7] * 20, "7.0%"),  # 40% above
        ([3] * 20, "3.0%"),
        ([0, 14, 0, 14], None),  # 40% above too, but so few questions cannot tell
    ],
)
def test_a_share_that_is_missed_beyond_chance(cloud: list[int], far: str | None) -> None:
    told = warnings(ANIMALS, [], table("entropy", *cloud))
    assert len(told) == (far is not None)
    assert (far or "") in "".join(told)


def test_every_share_that_is_missed_is_in_one_sentence() -> None:
    missed = table("margin", *[20] * 9, shares=(0.05, 0.1, 0.2))
    (sentence,) = warnings(ANIMALS, [], missed)
    assert sentence.count("20.0%") == 2
    # Whole questions stay below a share.
    assert warnings(ANIMALS, [], table("query-level", *[1] * 20)) == []
