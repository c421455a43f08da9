"""From measured answers to the frontier: compositions, equal costs, rows, tables, figures."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise_lab.bench.frontier.billing import (
    LISTS,
    CloudRequest,
    MeasuredAnswer,
    mean_prompt_tokens_computed,
    metered_seconds,
    priced,
)
from edgewise_lab.bench.frontier.pair_systems import measure
from edgewise_lab.bench.frontier.report import (
    MeasuredAnswers,
    Whole,
    cost_of,
    frontier,
    seconds,
    share,
    uncertain,
)
from edgewise_lab.bench.frontier.shown import tables
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
CASCADE = Whole("cascade", EDGES, CLOUDS, uncertain(EDGES))


def test_a_cascade_is_paid_for_twice_and_shows_nothing_before_it_knows() -> None:
    found = CASCADE.at(0.8)
    assert [one.outcome.cloud_tokens for one in found] == [0, 10, 0, 0, 10]
    sent, kept = found[1], found[0]
    assert sent.outcome.seconds == EDGE_SECONDS + CLOUD_SECONDS
    assert sent.ttft == EDGE_SECONDS + CLOUDS[1].ttft
    assert (sent.decodes, sent.positions) == (TOKENS, 29)
    assert (sent.requests, sent.sent) == (CLOUDS[1].requests, 300)
    assert kept.ttft == kept.outcome.seconds == EDGE_SECONDS
    assert kept.requests == ()


def test_a_question_routed_before_it_is_answered_costs_the_edge_its_prompt() -> None:
    sent, *_, kept = Whole("routed", EDGES, CLOUDS, [1, 0, 0, 0, 0]).at(1)
    assert sent.outcome.seconds == EDGES[0].ttft + CLOUD_SECONDS
    assert sent.ttft == EDGES[0].ttft + CLOUDS[0].ttft
    # A pass over the prompt: the other nine were over a token each.
    assert (sent.decodes, sent.positions) == (1, 20)
    assert kept == EDGES[-1]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=12),
    st.floats(0, 2),
    st.sampled_from([share, seconds]),
)
def test_what_is_sent_stays_within_its_cost_and_no_more_would(
    drawn: list[tuple[bool, int]], most: float, cost: object
) -> None:
    edges = [edge(n, right=r, unsure=float(u)) for n, (r, u) in enumerate(drawn)]
    clouds = [cloud(n) for n in range(len(drawn))]
    measure_of = share if cost is share else seconds
    for way in ("cascade", "routed"):
        whole = Whole(way, edges, clouds, uncertain(edges))
        at = whole.within(measure_of, most)
        if at < float("inf"):
            assert cost_of(measure_of, whole.at(at)) <= most + 1e-9
        lower = [u for u in set(uncertain(edges)) if u < at]
        assert all(cost_of(measure_of, whole.at(u)) > most - 1e-9 for u in lower)


def test_a_request_given_up_counts_as_the_others() -> None:
    (found,) = metered_seconds([pair(0)])
    assert [one.engine_seconds for one in found.requests] == [0.1, 0.1]
    assert mean_prompt_tokens_computed([pair(0)]) == 22 + 3
    assert mean_prompt_tokens_computed([cloud(0)]) == 20
    unmetered = CloudRequest(prompt=5, seen=0, written=1)
    blind = MeasuredAnswer(outcome=pair(0).outcome, ttft=0.0, gap=0.0, requests=(unmetered,))
    assert mean_prompt_tokens_computed([blind]) is None
    assert metered_seconds([blind]) == [blind]
    own = LISTS["own GPU, by its seconds"]
    assert cost_of(priced(own), [blind]) != cost_of(priced(own), [blind])


def found() -> dict[str, MeasuredAnswers]:
    return {
        "edge": MeasuredAnswers(EDGES, EDGES[:3]),
        "cloud": MeasuredAnswers(CLOUDS, CLOUDS[:3]),
        "ours": MeasuredAnswers(
            [pair(n) for n in range(5)], [pair(n) for n in range(3)], note="as it is"
        ),
    }


def test_rows_say_what_each_system_gets_right_and_costs() -> None:
    told = frontier(found(), "ours", {"round trip": 0.05}, scores=[0.0, 1.0, 0.0, 0.0, 0.0])
    rows = {row.system: row for row in told.rows}
    assert rows["cloud"].bills == dict.fromkeys(LISTS, 1.0)
    assert rows["edge"].bills == dict.fromkeys(LISTS, 0.0)
    ours = rows["ours"]
    # 22 and 25 prompt tokens and two written, against 20 and ten.
    assert ours.bills["no cache discount"] == pytest.approx((47 + 4 * 2) / (20 + 4 * 10))
    assert ours.bills["cached at 2%"] == pytest.approx((25 + 22 * 0.02 + 8) / 60)
    assert ours.bills["own GPU, by its seconds"] == pytest.approx(0.2 / 0.4)
    assert (ours.accuracy, ours.difference, ours.requests, ours.cloud_share) == (1, 0, 2, 0.2)
    assert rows["edge"].difference == pytest.approx(-0.6)
    assert (ours.time, ours.time_p50, ours.time_p95) == (pytest.approx(1.2), 1.2, 1.2)
    assert (ours.questions, ours.timed, ours.clock) == (5, 3, "measured")
    assert rows["cascade, equal share"].clock == "composed"
    assert rows["cascade, equal share"].cloud_share <= ours.cloud_share
    assert "query level, trained, equal share" in rows


def test_whole_questions_stand_beside_it_at_every_equal_cost() -> None:
    told = frontier(found(), "ours", {})
    axes = {one.axis for one in told.whole}
    assert axes == {"cloud share", "time", *(f"bill, {name}" for name in LISTS)}
    at = {(one.axis, one.system): one for one in told.whole}
    low, high = at["cloud share", "cascade"].accuracy_gain_interval
    assert low <= at["cloud share", "cascade"].accuracy_gain <= high


def test_what_no_engine_meters_is_left_open() -> None:
    blind = {
        **found(),
        "cloud": MeasuredAnswers(
            [cloud(n, engine=None) for n in range(5)], [cloud(0, engine=None)] * 3
        ),
    }
    told = frontier(blind, "ours", {})
    assert {row.bills["own GPU, by its seconds"] for row in told.rows if row.requests} == {None}
    assert "-" in tables(told)[1].lines[1]


class Counting:
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
