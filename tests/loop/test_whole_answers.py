"""Answers that a chat model is asked to write whole: what they cost, and where they do not come."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from decimal import Decimal
from typing import Literal

import pytest
from aiohttp import web
from msgspec.structs import replace

from edgewise.costs.meter import Billing, Limits
from edgewise.costs.price import price_of
from edgewise.errors import CloudError, CloudRejected
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.health import FAILURES, Breaker
from edgewise.loop.policy import INITIAL_BUCKET, Budget, Escalation
from edgewise.prompts import Message, Prompt
from edgewise.routers.untrained import Constant
from edgewise.sampling import Sampling
from tests.doubles.chat_reader import Asked, ChatReader, Verdict, mends
from tests.loop.test_read_along import RIGHT, SAID, WRONG, reading, reasons, whole

# A chat API would continue its end.
ANSWERED = Prompt(SAID.ids, (Message("user", "Well?"), Message("assistant", "Well.")))


async def never() -> str:
    await asyncio.sleep(60)
    return ""


async def fails() -> str:
    raise web.HTTPInternalServerError


async def nothing() -> str:
    return ""


def due() -> Escalation:
    """Chooses the next answer, whatever its doubt."""
    escalation = Escalation(0.5)
    for _ in range(8):
        escalation.wants(0)
    return escalation


def escalating(pair: Decoder, escalation: Escalation, *, limited: bool = False) -> Decoder:
    """The pair with `escalation`; `limited`: a whole answer costs more than an answer may."""
    limits = Limits(alone=False, answer=Decimal("0.03"))
    return Decoder(
        pair.edge,
        router=Constant(0.0),
        policy=pair.policy,
        cloud=pair.cloud,
        billing=Billing(price_of("1,0.1,8"), limits=limits) if limited else None,
        escalation=escalation,
    )


def breaks(breaker: Breaker) -> None:
    for _ in range(FAILURES):
        breaker.failed()


def asked_whole(served: ChatReader) -> int:
    """How many whole answers were asked for."""
    return sum(len(body["messages"]) == 1 for body in served.bodies)


@pytest.mark.parametrize("how", ["left", "timeout", "circuit_open"])
def test_a_whole_answer_in_vain_costs_the_share_nothing(how: str) -> None:
    """Seen: all that it might have had was owed by the answers after it."""
    policy = {"cloud_share": 0.1, **({"deadline": 0.3} if how == "timeout" else {})}
    with reading(policy=policy) as (pair, served):
        served.whole = never
        decoder = whole(pair, 1.0)
        with decoder.stream(SAID, pending=True, max_tokens=600) as events:
            for _ in range(3):
                next(events)
            if how == "circuit_open":
                breaks(decoder.tiers[0].breaker)
            usage = None if how == "left" else collect(events).usage
        assert events.budget.bucket >= INITIAL_BUCKET
    assert usage is None or (usage.wasted_tokens, usage.escalated) == (600, False)


@pytest.mark.parametrize("chosen", [True, False])
def test_an_answer_that_begins_in_debt_is_weighed_all_the_same(chosen: bool) -> None:
    """A whole answer is not of the share. Seen: the edge's was written, which nobody had read."""
    with reading(policy={"cloud_share": 0.1}) as (pair, served):
        decoder = escalating(pair, due() if chosen else Escalation(0.5))
        answer = decoder.generate(SAID, budget=Budget(bucket=-20))
    assert answer.text == ("A whole answer." if chosen else WRONG)
    assert answer.usage.escalated is chosen
    assert not served.asked


def test_a_whole_answer_is_asked_for_no_more_than_the_context_holds() -> None:
    with reading() as (pair, served):
        whole(pair, 1.0).generate(SAID, max_tokens=100_000)
    room = pair.edge.context + 1 - len(SAID.ids)
    assert served.bodies[-1]["max_tokens"] == room


def test_no_whole_answer_is_asked_for_to_test_the_link() -> None:
    """It would be paid for, and not waited for."""
    with reading() as (pair, served):
        decoder = whole(pair, 1.0)
        breaker = decoder.tiers[0].breaker
        breaker.failed(silent=True)
        first = decoder.generate(SAID)
        assert asked_whole(served) == 0
        while breaker.is_open:
            time.sleep(0.01)
        second = decoder.generate(SAID)
    assert (first.text, second.text) == (WRONG, "A whole answer.")


def test_a_correction_after_a_whole_answer_that_failed_is_of_the_share() -> None:
    with reading(mends("five", "four"), policy={"cloud_share": 0.1}) as (pair, served):
        served.whole = fails
        with whole(pair, 1.0).stream(SAID) as events:
            answer = collect(events)
        left = events.budget.bucket
    assert answer.text == RIGHT
    assert not answer.usage.escalated
    corrected = answer.usage.cloud_tokens
    assert left == pytest.approx(INITIAL_BUCKET + 0.1 * len(answer.tokens) - corrected)


def test_a_correction_behind_a_whole_answer_that_was_cut_is_of_the_share() -> None:
    begun = "Well. "

    def judge(asked: Asked) -> Verdict:
        served.cuts = False
        return mends("five", "four")(asked)

    with reading(judge, edge=WRONG, policy={"cloud_share": 0.1}) as (pair, served):

        async def cut() -> str:
            served.cuts = True
            return begun

        served.whole = cut
        with whole(pair, 1.0).stream(SAID, max_tokens=200) as events:
            answer = collect(events)
        left = events.budget.bucket
    assert answer.text.startswith(begun)
    assert answer.usage.escalated
    corrected = answer.usage.cloud_tokens - len(begun)
    assert corrected > 0
    assert left == pytest.approx(INITIAL_BUCKET + 0.1 * len(answer.tokens) - corrected)


@pytest.mark.parametrize("whole_answer", [fails, nothing, None])
def test_where_the_whole_answer_does_not_come_the_verdict_holds(
    whole_answer: Callable[[], Awaitable[str]] | None,
) -> None:
    """Seen: the passage that was rejected was written."""

    def judge(asked: Asked) -> Verdict:
        return (0, "It is four.") if not asked.answer else (len(asked.sentences), None)

    with reading(judge) as (pair, served):
        served.whole = whole_answer or served.whole
        decoder = escalating(pair, Escalation(0.5), limited=whole_answer is None)
        assert decoder.escalation is not None
        decoder.escalation.wants(0)
        answer = decoder.generate(SAID, max_tokens=3900)
        wanted = asked_whole(served)
    assert answer.text.startswith("It is four.\n\n")
    assert not answer.usage.escalated
    assert wanted == (whole_answer is not None)


@pytest.mark.parametrize(("whole_answer", "raised"), [(fails, True), (nothing, False)])
def test_a_user_who_wants_failures_raised_is_told_of_whole_answers_that_fail(
    whole_answer: Callable[[], Awaitable[str]], raised: bool
) -> None:
    """A reply without use is no failure, but of the cloud alone."""

    def judge(asked: Asked) -> Verdict:
        return (0, "It is four.") if not asked.answer else (len(asked.sentences), None)

    with reading(judge, policy={"on_cloud_error": "raise"}) as (pair, served):
        served.whole = whole_answer
        decoder = whole(pair, 0.5)
        assert decoder.escalation is not None
        decoder.escalation.wants(0)
        with pytest.raises(CloudError) if raised else nullcontext():
            assert decoder.generate(SAID).text.startswith("It is four.")
        alone = replace(pair.policy, cloud_share=1.0)
        with pytest.raises(CloudError):
            decoder.generate(SAID, policy=alone)


@pytest.mark.parametrize("how", ["top_k", "answered", "system", "temperature"])
def test_what_a_cloud_cannot_be_asked_by_one_user_pauses_it_for_no_other(how: str) -> None:
    """Seen: after three such requests nobody's answers were read."""
    system = Prompt(SAID.ids, (Message("system", "Well?"),))
    said = {"answered": ANSWERED, "system": system}.get(how, SAID)
    drawn = Sampling(temperature=0.5, top_k=4 if how == "top_k" else 0)
    sampling = drawn if said is SAID else Sampling()
    with reading(mends("five", "four"), form="anthropic") as (pair, served):
        alone = replace(pair.policy.cloud_alone(), on_cloud_error="raise")
        served.declines = frozenset(["temperature"] if how == "temperature" else [])
        for _ in range(FAILURES):
            with pytest.raises(CloudRejected):
                pair.generate(said, policy=alone, sampling=sampling)
        served.declines = frozenset()
        assert not pair.tiers[0].breaker.is_open
        assert pair.generate(SAID).text == RIGHT


def test_a_cloud_that_declines_to_read_is_paused() -> None:
    def declines(_: int) -> int:
        return 400

    with reading(fault=declines, edge=WRONG * 4) as (pair, _):
        for _ in range(FAILURES):
            pair.generate(SAID, max_tokens=100)
        assert pair.tiers[0].breaker.is_open


@pytest.mark.parametrize("failures", ["edge", "raise"])
def test_the_cloud_alone_says_what_the_limits_on_costs_forbid(
    failures: Literal["edge", "raise"],
) -> None:
    """Seen: the edge's answer, of which the cloud had read what could be paid."""
    with reading() as (pair, served):
        decoder = escalating(pair, due(), limited=True)
        alone = replace(pair.policy.cloud_alone(), on_cloud_error=failures)
        forbidden = pytest.raises(CloudError, match="limits on costs")
        with forbidden if failures == "raise" else nullcontext():
            assert decoder.generate(SAID, policy=alone, max_tokens=3900).text == WRONG
        assert asked_whole(served) == 0


@pytest.mark.parametrize("how", ["fails", "nothing", "declined", "cost"])
@pytest.mark.parametrize("passages", [1, 2])
def test_where_the_whole_answer_does_not_come_its_beginning_is_read(
    how: str, passages: int
) -> None:
    """Seen: where the edge is least sure its first passage was written unread."""
    edge = "\n\n".join(WRONG.split("\n\n")[:passages])
    with reading(mends("five", "four"), edge=edge) as (pair, served):
        served.whole = {"fails": fails, "nothing": nothing}.get(how, served.whole)
        decoder = escalating(pair, due(), limited=how == "cost")
        answer = decoder.generate(ANSWERED if how == "declined" else SAID, max_tokens=3900)
        wanted = asked_whole(served)
    assert answer.text == edge.replace("five", "four")
    assert wanted == (how in ("fails", "nothing"))
    assert {token.reason for token in answer.tokens} <= {"verified", "corrected", "span"}


@pytest.mark.parametrize("first", ["whole", "read"])
@pytest.mark.parametrize("how", ["timeout", "circuit_open"])
def test_a_whole_answer_that_is_late_is_wasted_and_counts_against_the_cap(
    first: str, how: str
) -> None:
    """Seen: as much again was corrected behind it, and none of it was wasted."""
    seen: list[Asked] = []

    def judge(asked: Asked) -> Verdict:
        seen.append(asked)
        return (0, "It is four.") if first == "read" else (len(asked.sentences), None)

    policy = {"max_cloud_tokens": 100, "deadline": 0.3 if how == "timeout" else 3}
    with reading(judge, edge=WRONG * 4, policy=policy) as (pair, served):
        decoder = escalating(pair, due() if first == "whole" else Escalation(0.5))
        assert decoder.escalation is not None
        if first == "read":
            decoder.escalation.wants(0)

        async def late() -> str:
            if how == "circuit_open":
                breaks(decoder.tiers[0].breaker)
            return await never()

        served.whole = late
        answer = decoder.generate(SAID, max_tokens=300)
    told = reasons(answer)
    assert answer.text.startswith("It is four." if first == "read" else WRONG)
    assert "cap" in told
    assert answer.usage.wasted_tokens == 100
    assert answer.usage.cloud_tokens == (len("It is four.\n\n") if first == "read" else 0)
    assert len(seen) == (first == "read")


@pytest.mark.parametrize("failures", ["edge", "raise"])
@pytest.mark.parametrize("cuts", [True, False])
def test_a_whole_answer_of_the_cloud_alone_that_is_cut_ends_there(
    failures: Literal["edge", "raise"], cuts: bool
) -> None:
    """Seen: the edge went on in the middle of a word, as if it were the cloud."""
    with reading() as (pair, served):
        served.cuts = cuts
        alone = replace(pair.policy.cloud_alone(), on_cloud_error=failures)
        answer = pair.generate(SAID, policy=alone, max_tokens=400)
    assert answer.text == "A whole answer."
    assert answer.finish_reason == ("length" if cuts else "stop")
    assert answer.usage.edge_tokens == 0
