"""From measured answers to the frontier: compositions, equal costs, rows, tables, figures."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from edgewise_lab.bench.frontier.billing import OWN_GPU, PRICE_LISTS, CloudRequest
from edgewise_lab.bench.frontier.report import (
    MeasuredAnswers,
    composed,
    frontier,
    mean_prompt_tokens_computed,
    metered_seconds,
)
from edgewise_lab.bench.frontier.timed import MeasuredAnswer, Timed, measure
from edgewise_lab.commands.shared import tables_of
from edgewise_lab.evaluation.report import Row, TimedFigures
from edgewise_lab.evaluation.store import Store
from edgewise_lab.evaluation.tasks.base import Question
from tests.evaluation.outcomes import outcome

EDGE_SECONDS, CLOUD_SECONDS, TOKENS = 1.0, 0.5, 10


def edge(number: int, *, right: bool, unsure: float = 0.0) -> MeasuredAnswer:
    told = outcome(number, right=right, uncertainty=unsure, seconds=EDGE_SECONDS)
    return MeasuredAnswer(
        outcome=told, ttft=0.2, gap=0.1, decodes=TOKENS, positions=29, sent=0, received=0
    )


def cloud(number: int, *, right: bool = True, engine: float | None = 0.4) -> MeasuredAnswer:
    request = CloudRequest(
        prompt=20, seen=0, written=TOKENS, cached=0, computed=20, engine_seconds=engine
    )
    told = outcome(number, right=right, cloud_tokens=TOKENS, consults=1, seconds=CLOUD_SECONDS)
    return MeasuredAnswer(
        outcome=told, ttft=0.1, gap=0.03, requests=(request,), sent=300, received=3000
    )


def pair(number: int, *, right: bool = True) -> MeasuredAnswer:
    """One token by the cloud, and one consult in vain, of which no meter came."""
    first = CloudRequest(prompt=22, seen=0, written=1, cached=0, computed=22, engine_seconds=0.1)
    vain = CloudRequest(prompt=25, seen=22, written=1)
    told = outcome(number, right=right, cloud_tokens=1, wasted_tokens=1, consults=1, seconds=1.2)
    return MeasuredAnswer(
        outcome=told,
        ttft=0.2,
        gap=0.15,
        decodes=12,
        positions=31,
        requests=(first, vain),
        sent=400,
        received=800,
    )


RIGHT = (True, False, False, True, False)
UNSURE = (0.1, 0.9, 0.5, 0.2, 0.8)
EDGES = [edge(n, right=r, unsure=u) for n, (r, u) in enumerate(zip(RIGHT, UNSURE, strict=True))]
CLOUDS = [cloud(n, right=n != 4) for n in range(5)]


def test_a_cascade_is_paid_for_twice_and_shows_nothing_before_it_knows() -> None:
    found = composed("cascade", EDGES, CLOUDS, [1, 4])
    assert [one.outcome.cloud_tokens for one in found] == [0, 10, 0, 0, 10]
    sent, kept = found[1], found[0]
    assert sent.outcome.seconds == EDGE_SECONDS + CLOUD_SECONDS
    assert sent.ttft == EDGE_SECONDS + CLOUDS[1].ttft
    assert (sent.decodes, sent.positions) == (TOKENS, 29)
    assert (sent.requests, sent.sent) == (CLOUDS[1].requests, 300)
    assert kept.ttft == kept.outcome.seconds == EDGE_SECONDS
    assert kept.requests == ()


def test_a_question_routed_before_it_is_answered_costs_the_edge_its_prompt() -> None:
    sent, *_, kept = composed("routed", EDGES, CLOUDS, [0])
    assert sent.outcome.seconds == EDGES[0].ttft + CLOUD_SECONDS
    assert sent.ttft == EDGES[0].ttft + CLOUDS[0].ttft
    # A pass over the prompt: the other nine were over a token each.
    assert (sent.decodes, sent.positions) == (1, 20)
    assert kept == EDGES[-1]


def test_a_request_given_up_counts_as_the_others() -> None:
    (found,) = metered_seconds([pair(0)])
    assert [one.engine_seconds for one in found.requests] == [0.1, 0.1]
    assert mean_prompt_tokens_computed([pair(0)]) == 22 + 3
    assert mean_prompt_tokens_computed([cloud(0)]) == 20
    unmetered = CloudRequest(prompt=5, seen=0, written=1)
    blind = MeasuredAnswer(outcome=pair(0).outcome, ttft=0.0, gap=0.0, requests=(unmetered,))
    assert mean_prompt_tokens_computed([blind]) is None
    assert metered_seconds([blind]) == [blind]


def found() -> dict[str, MeasuredAnswers]:
    return {
        "edge": MeasuredAnswers(EDGES, EDGES[:3]),
        "cloud": MeasuredAnswers(CLOUDS, CLOUDS[:3]),
        "ours": MeasuredAnswers(
            [pair(n) for n in range(5)], [pair(n) for n in range(3)], note="as it is"
        ),
    }


LISTS = [prices.name for prices in PRICE_LISTS]


def test_rows_say_what_each_system_gets_right_and_costs() -> None:
    rows = {row.system: row for row in frontier(found(), "ours", {}).systems}
    timing: dict[str, TimedFigures] = {name: row.timing for name, row in rows.items() if row.timing}
    assert timing["cloud"].bills == dict.fromkeys(LISTS, 1.0)
    assert timing["edge"].bills == dict.fromkeys(LISTS, 0.0)
    ours, own = rows["ours"], timing["ours"]
    # 22 and 25 prompt tokens and two written, against 20 and ten.
    assert own.bills["no cache discount"] == pytest.approx((47 + 4 * 2) / (20 + 4 * 10))
    assert own.bills["cached at 2%"] == pytest.approx((25 + 22 * 0.02 + 8) / 60)
    assert own.bills[OWN_GPU.name] == pytest.approx(0.2 / 0.4)
    assert (ours.accuracy, ours.difference, own.requests, ours.cloud_share) == (1, 0, 2, 0.2)
    assert rows["edge"].difference == pytest.approx(-0.6)
    assert (own.time, own.time_p50, own.time_p95) == (pytest.approx(1.2), 1.2, 1.2)
    assert (ours.questions, own.answers, own.clock, own.note) == (5, 3, "measured", "as it is")
    for name in ("cascade, equal share", "query level, oracle, equal share"):
        assert timing[name].clock == "composed"
        assert rows[name].cloud_share <= ours.cloud_share


def test_what_no_engine_meters_is_left_open() -> None:
    blind = {
        **found(),
        "cloud": MeasuredAnswers(
            [cloud(n, engine=None) for n in range(5)], [cloud(0, engine=None)] * 3
        ),
    }
    told = frontier(blind, "ours", {})
    timing = [row.timing for row in told.systems if row.timing and row.timing.requests]
    assert {one.bills[OWN_GPU.name] for one in timing} == {None}
    quality, costs = tables_of("5 questions", [Row(one, {}) for one in told.systems], "ours")
    assert {"less\nours", "first\ntoken, s"} <= {*quality.head}
    assert "-" in costs.lines[1]


class Counting(Timed):
    def __init__(self) -> None:
        self.asked: list[str] = []

    def answer(self, question: Question) -> MeasuredAnswer:
        self.asked.append(question.id)
        return edge(int(question.id), right=True)


def questions(count: int) -> Sequence[Question]:
    return [Question(str(n), "sky", f"q{n}", "x", "exact") for n in range(count)]


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    first = Counting()
    measure("ours at 5%", lambda: first, questions(2), Store(tmp_path, {}, MeasuredAnswer))
    again, store = Counting(), Store(tmp_path, {}, MeasuredAnswer)
    answers = measure("ours at 5%", lambda: again, questions(4), store)
    assert (first.asked, again.asked) == (["0", "1"], ["2", "3"])
    assert answers == [edge(n, right=True) for n in range(4)]
    kept = Store(tmp_path, {}, MeasuredAnswer)
    measure("ours at 5%", lambda: pytest.fail("all is known"), questions(4), kept)
