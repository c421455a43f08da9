"""From outcomes to figures, as tables and JSON show them."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise_lab.evaluation.report import CLOUD, EDGE, Figures, as_json, rows
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.systems import Outcome
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
    wasteful = {**FOUND, PAIR: outcomes("Xx..", cloud=2, wasted_tokens=1)}
    pair = figures(PAIR, wasteful)
    assert (pair.cloud_tokens, pair.wasted_tokens) == (8, 4)
    assert pair.cloud_share == pytest.approx(0.3)
    assert pair.cloud_work == pytest.approx(0.25)
    assert pair.cloud_share_interval == pytest.approx((0.3, 0.3))


def test_a_verdict_is_work_though_no_answer_holds_its_tokens() -> None:
    """Ten tokens of JSON an answer, of which two are in the answer; one consult gave nothing."""
    verdicts = {**FOUND, PAIR: outcomes("Xx..", cloud=2, written=10, failed=1)}
    pair = figures(PAIR, verdicts)
    assert (pair.written, pair.cloud_tokens, pair.failed_calls) == (40, 8, 4)
    assert pair.cloud_share == 0.2
    assert pair.cloud_work == pytest.approx(12 / 20)


@pytest.mark.parametrize("unmetered", [CLOUD, PAIR])
def test_without_a_meter_nobody_knows_what_was_read(unmetered: Cell) -> None:
    silent = [
        msgspec.structs.replace(outcome, cached=None, computed=None)
        for outcome in FOUND[unmetered][:1]
    ]
    found = {**FOUND, unmetered: silent + FOUND[unmetered][1:]}
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
    right=st.lists(st.tuples(*[st.booleans()] * 3), min_size=1, max_size=12),
    tokens=st.integers(0, 10),
)
def test_whatever_was_right_the_figures_hold_together(
    right: list[tuple[bool, bool, bool]], tokens: int
) -> None:
    edge, cloud, pair = (
        "".join(".x"[one] for one in column) for column in zip(*right, strict=True)
    )
    found = {
        EDGE: outcomes(edge),
        CLOUD: outcomes(cloud, cloud=10),
        PAIR: outcomes(pair, cloud=tokens),
    }
    for row in rows(found):
        told = row.overall
        assert told.interval[0] <= told.accuracy <= told.interval[1]
        assert 0 <= told.cloud_share <= 1
        assert told.strict_accuracy <= told.accuracy
        assert (told.gap_recovered is None) == (cloud.count("x") <= edge.count("x"))
        assert told.cloud_share_interval[0] <= told.cloud_share <= told.cloud_share_interval[1]
        assert row.families["f"] == msgspec.structs.replace(told)


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
