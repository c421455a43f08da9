"""A price list; and a bill is what the provider's meter says, the dearest where it says nothing."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.completion import Completion, Outgoing
from edgewise.costs.meter import AnswerCosts, Billing, CloudTokens, Limits
from edgewise.costs.price import BilledTokens, Price, price_of
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    UsageError,
)
from edgewise.events import Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import INITIAL_BUCKET, Policy
from edgewise.pair import Pair
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant
from edgewise.testing import ByteTokenizer, ScriptedCloud, ScriptedEdge, noise, replying
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud
from tests.doubles.billed_cloud import BilledCloud

LIST = 'input = 0.28\ncached = "0.028"\noutput = 0.42\n'


def test_three_numbers_or_a_file(tmp_path: Path) -> None:
    price = price_of("0.28, 0.028,0.42")
    assert price == Price(input=Decimal("0.28"), cached=Decimal("0.028"), output=Decimal("0.42"))
    # 1,000 x 0.28 + 500 x 0.028 + 10 x 0.42, a millionth of it.
    assert price.of(BilledTokens(input=1000, cached=500, output=10)) == Decimal("0.0002982")
    path = tmp_path / "prices.toml"
    path.write_text(LIST + 'currency = "USD"\ncached_from = 64\n')
    assert price_of(str(path)) == replace(price, currency="USD", cached_from=64)


@pytest.mark.parametrize(
    "given",
    [
        *("1,2", "1", "1,0.1,2,3", "1,0.1,x", "", "-1,0,1", "1,nan,1", "1,0.1,inf", "1,0.1,1e7"),
        *(".", "1,0.1,1e999999", "1,0.1,0.0000001", "1,0.1,1e-999999", "1,2,3"),
        # What a file may say.
        LIST.replace("input", "inptu"),
        *(f"{LIST}currency = {said}" for said in ("3", '"123456789"', '"\\u001b[2J"')),
        *(f"{LIST}{line}" for line in ("cached_from = 0", "cached_from = 1.5", "more = 1")),
        *(f"input = {said}\ncached = 0\noutput = 1" for said in ("nan", '"NaN"', "-1", "true")),
        "input = 1\ncached = 0",
        "[input]",
        "\x00",
    ],
)
def test_what_is_not_a_price(tmp_path: Path, given: str) -> None:
    of_file = any(mark in given for mark in "=[\0")
    if of_file:
        (tmp_path / "prices.toml").write_text(given)
    with pytest.raises(UsageError) as refused:
        price_of(str(tmp_path / "prices.toml") if of_file else given)
    assert refused.value.setting == "price"
    assert of_file or "IN,CACHED,OUT" in str(refused.value)


PRICE = price_of("2,0.5,8")
FREE = Limits(alone=False)
IDS = list(b"Q: sky? A:")


@pytest.mark.deep
def test_50_recorded_conversations_are_billed_to_the_token() -> None:
    """Of the bundled pair, with the meter of the engine that runs the cloud model."""
    billing = Billing(PRICE, limits=FREE)
    with Pair(cloud_share=0.3, threads=1, deadline=30.0) as pair:
        _, model = pair.both()
        asked: list[Flying] = []

        def noted(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
            asked.append(send())
            return asked[-1]

        decoder = Decoder(
            pair.edge,
            router=pair.router,
            policy=Policy(threshold=0.02, deadline=30.0),
            cloud=WrappedCloud(model, noted),
            billing=billing,
        )
        totals = np.zeros(3, int)
        for question in pocketqa().questions[:50]:
            prompt = pair.prompt(question.prompt)
            asked.clear()
            answer = decoder.generate(prompt, max_tokens=16)
            raw = [future.result() for future in asked]
            cost, size = answer.usage.cost, len(prompt.ids)
            metered = [np.array([one.computed, one.cached, len(one.ids)]) for one in raw]
            counts = sum(metered, np.zeros(3, int))
            assert [*counts] == [cost.input_tokens, cost.cached_tokens, cost.output_tokens]
            found = min(size, raw[0].cached or 0) if raw else 0
            alone = 2 * (size - found) + 0.5 * found + 8 * len(answer.tokens)
            assert 1e6 * cost.paid == pytest.approx(counts @ [2, 0.5, 8])
            assert 1e6 * cost.alone == pytest.approx(alone)
            assert cost.saved == pytest.approx(cost.alone - cost.paid)
            assert not cost.estimated
            totals += counts
        every = billing.savings()
    assert (billing.sums.answers, totals[2] > 50) == (50, True)
    assert [*totals] == [every.input_tokens, every.cached_tokens, every.output_tokens]


def metering(
    prompt: int, limits: Limits = FREE, *, price: str = "2,0.5,8", cloud: CloudModel | None = None
) -> AnswerCosts:
    cloud = cloud or ScriptedCloud(noise())
    tokens = CloudTokens([1] * prompt, ByteTokenizer(), cloud)
    billing = Billing(price_of(price), limits=limits)
    billing.remember([1] * 64)  # an earlier answer's
    return AnswerCosts(billing, tokens, cloud.requests, whole=True)


def answered(completion: Completion) -> "Future[Completion]":
    future = Future[Completion]()
    future.set_result(completion)
    return future


def wrote(n: int, **meter: int | None) -> Completion:
    return Completion(ids=(97,) * n, logprobs=(None,) * n, **meter)  # type: ignore[arg-type]


def reached() -> Outgoing:
    sent = Outgoing()
    sent.add([1], b"{}")
    return sent


@pytest.mark.parametrize(
    ("meter", "billed"),
    [
        ({"prompt": 50, "cached": 20}, BilledTokens(input=30, cached=20, output=1)),
        ({"cached": 20, "computed": 30}, BilledTokens(input=30, cached=20, output=1)),
        ({}, BilledTokens(input=41, output=1, estimated=True)),
        ({"prompt": 50}, BilledTokens(input=50, output=1, estimated=True)),
        ({"prompt": 40, "cached": 20}, BilledTokens(input=21, cached=20, output=1, estimated=True)),
    ],
)
def test_what_a_meter_says_is_billed(meter: dict[str, int], billed: BilledTokens) -> None:
    """But never less than what was sent; 40 of the 41 ids are the prompt."""
    meter_of = metering(40)
    meter_of.sent([1] * 41, 1, reached(), answered(wrote(1, **meter)))
    assert meter_of.report([1] * 43).billed == billed
    # Where a cached token costs as much as another no meter is needed.
    meter_of = metering(9, price="2,2,8")
    meter_of.sent([1] * 9, 1, reached(), answered(wrote(1, prompt=9)))
    assert meter_of.report([1] * 9).billed == BilledTokens(input=9, output=1)


def test_no_more_is_cached_than_was_sent_before() -> None:
    meter = metering(100)
    for length, billed in ((100, (36, 64)), (103, (2, 101)), (110, (6, 104))):
        before = meter.report([1] * length).billed
        meter.sent([1] * length, 1, reached(), answered(wrote(1, prompt=length, cached=length)))
        after = meter.report([1] * length).billed
        assert (after.input - before.input, after.cached - before.cached) == billed
        assert after.estimated


def test_a_draft_that_was_dropped_is_not_expected_to_be_cached() -> None:
    """64 of the 143 tokens are, and not the 78 that are 64 less than what was sent."""
    tokens = CloudTokens([1] * 127, ByteTokenizer(), cloud := ScriptedCloud(noise()))
    price = Price(input=Decimal(1), cached=Decimal(0), output=Decimal(45), cached_from=64)
    billing = Billing(price)
    billing.remember([1] * 64)
    meter = AnswerCosts(billing, tokens, cloud.requests, whole=True)
    verified = wrote(0, prompt=142, cached=64)
    meter.sent([1] * 127 + [2] * 15, 0, reached(), answered(verified))
    assert meter.admits([1] * 127 + [3] * 16, 0, 15) == 0
    assert meter.admits([1] * 127 + [2] * 16, 0, 15) > 0


def unanswered(error: CloudError, *, declined: bool = False) -> "Future[Completion]":
    future, error.declined = Future[Completion](), declined
    future.set_exception(error)
    return future


def cancelled() -> "Future[Completion]":
    future = Future[Completion]()
    future.cancel()
    return future


NEVER_LEFT, LEFT = Outgoing, reached


@pytest.mark.parametrize(
    ("future", "sent", "costs"),
    [
        (unanswered(CloudUnavailable("no connection")), NEVER_LEFT, False),
        (unanswered(CloudUnavailable("cut")), LEFT, True),
        (unanswered(CloudUnavailable("HTTP 429"), declined=True), LEFT, True),
        (unanswered(CloudRejected("HTTP 400"), declined=True), LEFT, False),
        (unanswered(CloudRejected("no whole word")), LEFT, True),
        (unanswered(CloudTimeout("late")), LEFT, True),
        (unanswered(CloudProtocolError("HTML")), LEFT, True),
        (Future(), NEVER_LEFT, True),  # it flies, and may still leave
        (Future(), LEFT, True),
        (cancelled(), LEFT, True),
        (cancelled(), NEVER_LEFT, False),
    ],
)
def test_what_came_to_naught(future: Any, sent: Callable[[], Outgoing], costs: bool) -> None:
    meter = metering(100)
    meter.sent([1] * 110, 3, sent(), future)
    found = meter.report([1] * 110).billed
    assert found == (BilledTokens(input=110, output=3, estimated=True) if costs else BilledTokens())


def test_one_that_flew_is_billed_as_it_lands() -> None:
    meter, future = metering(100), Future[Completion]()
    meter.sent([1] * 100, 1, reached(), future)
    assert meter.report([1] * 100).billed.estimated
    future.set_result(wrote(1, prompt=100, cached=64))
    assert meter.report([1] * 100).billed == BilledTokens(input=36, cached=64, output=1)


class Words(ScriptedCloud):
    """A cloud of another vocabulary, text alone."""

    boundaries: Any = object()

    def requests(self, n: int) -> tuple[int, int]:
        return 4, 8


def test_a_word_may_take_several_requests() -> None:
    """Counts by what its meter says of prompts."""
    meter = metering(100, Limits(False, Decimal("0.000999")), cloud=Words(noise()))
    # 4 x 100 + 8 x (1 + 2 + 3) prompt tokens and 32 written: 1,152 millionths.
    assert not meter.admits([1] * 100, 1)
    sent = reached()
    sent.add([1], b"{}")
    completion = wrote(2, prompt=308, cached=150, written=16)
    meter.sent([1] * 100, 1, sent, answered(completion))
    found = meter.report([1] * 110)
    # 154 tokens a prompt; the second request found what the first one sent.
    assert found.billed == BilledTokens(input=158, cached=150, output=16, estimated=True)
    assert found.alone == PRICE.of(BilledTokens(input=154, output=15))

    # A request that is repeated is no shorter prompt.
    meter, sent = metering(100, cloud=Words(noise())), reached()
    sent.add([1], b"{}", again=True)
    meter.sent([1] * 100, 1, sent, answered(wrote(1, prompt=154, cached=0, written=8)))
    assert meter.report([1] * 100).alone == PRICE.of(BilledTokens(input=154))
    # A word that fails is billed for the requests that left.
    meter, sent = metering(100, cloud=Words(noise())), reached()
    sent.add([1], b"{}")
    meter.sent([1] * 100, 1, sent, unanswered(CloudTimeout("late")))
    assert meter.report([1] * 100).billed == BilledTokens(input=208, output=16, estimated=True)


@pytest.mark.parametrize(
    "meter", [{"prompt": -1}, {"prompt": 1 << 40}, {"prompt": 165}, {"prompt": 10, "cached": 11}]
)
def test_prompts_that_no_engine_bills(meter: dict[str, int]) -> None:
    with pytest.raises(CloudProtocolError):
        wrote(1, **meter).validate(asked=1, prompt=100)


def deciding(
    score: float, policy: Policy, cloud: ScriptedCloud, billing: Billing | None
) -> Decoder:
    """An edge that writes what the cloud would, each token with the same score."""
    router = Constant(score)
    edge = ScriptedEdge(cloud.script)
    return Decoder(edge, router=router, policy=policy, cloud=cloud, billing=billing)


def test_what_costs_hold_back_does_not_wind_the_threshold_down() -> None:
    """Else the first consult that may go again would go for any token at all."""
    text = "all of it but the first token is held back"
    cloud = BilledCloud(replying(text, prompt=bytes(IDS).decode()), None)
    decoder = deciding(0.9, Policy(cloud_share=0.2), cloud, Billing(price_of("1,1,1")))
    with decoder.stream(IDS) as events:
        tokens = [event for event in events if isinstance(event, Token)]
        bucket = events.budget.bucket
    assert [token.source for token in tokens] == ["cloud", *["edge"] * len(text)]
    assert {token.reason for token in tokens[1:]} == {"cost"}
    # One token by the cloud, whose share of itself is earned.
    assert bucket == pytest.approx(INITIAL_BUCKET - 0.8)


@pytest.mark.parametrize("billing", [None, Billing(PRICE), Billing(PRICE, limits=FREE)])
def test_with_a_price_nothing_is_read_ahead_of_its_bill(billing: Billing | None) -> None:
    """A push is billed like a prompt, and no meter tells of it."""
    pushed: list[int] = []

    class Pushed(ScriptedCloud):
        def open(self, prompt: Prompt) -> Any:
            session = super().open(prompt)
            session.prefetch = lambda ids, outgoing: pushed.append(len(ids))  # type: ignore[method-assign]
            return session

    cloud = Pushed(replying("blue", prompt=bytes(IDS).decode()))
    deciding(0.0, Policy(), cloud, billing).generate(IDS)
    assert bool(pushed) == (billing is None)


def test_guesses_send_no_consults_where_costs_are_limited() -> None:
    """So an answer depends on what the provider has cached, and not on the link."""
    script = replying("blue sky over the hills", prompt=bytes(IDS).decode())
    policy = Policy(span=1, speculate=8, deadline=30.0)
    asks: dict[str, int] = {}
    for name, limits in (("limited", Limits(alone=False, answer=Decimal(1))), ("free", FREE)):
        cloud = ScriptedCloud(script, delay=0.02)
        decoder = deciding(1.0, policy, cloud, Billing(PRICE, limits=limits))
        flying: list[int] = []
        with decoder.stream(IDS, pending=True) as events:
            for event in events:
                if isinstance(event, Token):
                    flying.append(len(cloud.asks) - event.index - 1)
        asks[name] = max(flying)
    assert asks["limited"] == 0 < asks["free"]
