"""Advice under conditions where each way wins, and speeds of real models."""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal

import pytest
from msgspec.structs import replace

from benchmarks.paced_engine import PacedEngine
from edgewise.addresses import bundled
from edgewise.advice import (
    ANSWER,
    PROMPT,
    Advice,
    MeasuredConditions,
    advise,
    cloud_pace,
    edge_step,
    money,
    outlook,
)
from edgewise.cloud.engine import LlamaServer
from edgewise.costs.price import Price
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudError
from edgewise.testing.link import Link, Quality
from edgewise_lab.bench.pace import EnginePace, Pace, PacedEdge
from tests.doubles.scripted_engine import Misdeed, ScriptedEngine
from tests.llama_server_process import llama_server

AT = MeasuredConditions(
    step=0.010,
    round_trip=0.100,
    consult=0.040,
    cloud_token=0.027,
    edge_prompt=0.010,
    cloud_prompt=0.040,
    prompt=1,
    answer=1,
    asked=0.05,
    changed=0.5,
)
PRICE = money(Price(input=Decimal("0.28"), cached=Decimal("0.028"), output=Decimal("0.42")))


def advice(at: MeasuredConditions = AT, **given: object) -> Advice:
    return advise(outlook(at, **{"streams": True, "assumed": True, **given}))  # type: ignore[arg-type]


def test_a_quick_edge_is_fastest_and_routing_beats_streaming() -> None:
    found = advice()
    assert found.fastest == "edge"
    assert found.streaming is not None
    assert found.edge < found.routing < found.streaming
    # 0.05 (0.5 RTT + c and an eighth of a step) more than the edge's own step, and a little of the
    # trips near the end.
    assert 1000 * found.routing == pytest.approx(10 + 0.05 * (70 + 1.25), abs=0.2)
    assert 1000 * found.streaming == pytest.approx((140 + 299 * 27) / 300)
    first, second = found.sentences
    assert re.findall(r"[\d.]+(?= ms)", first) == ["10", "13.6", "27.4"]
    assert ("300 tokens" in first, "edgewise eval" in second) == (True, True)
    assert re.findall(r"\d+%", second) == ["5%", "50%", "50%"]


def test_a_slow_edge_is_told_to_stream() -> None:
    found = advice(replace(AT, step=0.060))
    assert found.fastest == "streaming"
    assert found.break_even == 0
    assert "27.4 ms" in found.sentences[0]
    assert "2.3 times" in found.sentences[1]
    assert "95%" in found.sentences[1]


def test_a_share_that_breaks_even_is_named() -> None:
    """The edge is quicker than the stream, the pair is not."""
    found = advice(replace(AT, step=0.024, asked=0.2))
    assert found.edge < (found.streaming or 0) < found.routing
    assert found.break_even == pytest.approx(0.046, abs=0.003)
    assert f"{found.break_even:.1%}" in found.sentences[1]


def test_what_is_cheapest_goes_by_the_price_and_the_cache() -> None:
    uncached, cached = (advice(replace(AT, cached=part), price=PRICE) for part in (0.0, 1.0))
    assert uncached.bill is not None
    assert cached.bill is not None
    consults, prompt = 0.05 * ANSWER, PROMPT + ANSWER / 2
    alone = PROMPT * 0.28 + ANSWER * 0.42
    assert uncached.bill == pytest.approx(consults * (prompt * 0.28 + 0.42) / alone)
    assert uncached.bill > 1
    assert f"bill {uncached.bill:.1f} times" in uncached.sentences[0]
    assert "held back" in uncached.sentences[0]
    few = advice(replace(AT, cached=1.0, asked=0.01), price=PRICE)
    assert few.bill is not None
    assert few.bill < 1 < cached.bill < uncached.bill
    assert {found.cheapest for found in (uncached, cached, few)} == {"edge"}


def test_what_is_not_known_is_said() -> None:
    found = advice(streams=False)
    assert (found.streaming, found.break_even, found.cheapest) == (None, None, None)
    assert "could not be measured" in found.sentences[0]
    assert "as measured" in advice(assumed=False).sentences[1]
    assert "nothing is billed" in advice(local=True).sentences[0]
    free = advice(price=money(Price(input=Decimal(0), cached=Decimal(0), output=Decimal(0))))
    assert free.bill is None
    assert "price is nothing" in free.sentences[0]
    nothing = advice(replace(AT, asked=0.0))
    assert nothing.routing == pytest.approx(nothing.edge)
    assert nothing.sentences[1].startswith("Routing at a share of 0% asks for nothing")


@pytest.mark.parametrize("step", [0.001, 0.024, 0.1])
@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("streams", [True, False])
def test_advice_is_two_sentences(step: float, share: float, streams: bool) -> None:
    found = advice(replace(AT, step=step, asked=share), price=PRICE, streams=streams)
    for sentence in found.sentences:
        assert sentence.endswith(".")
        assert ". " not in sentence
        assert "None" not in sentence
        assert "nan" not in sentence


@pytest.mark.deep
def test_the_speeds_of_a_real_pair_over_a_link() -> None:
    pace = EnginePace(first=0.05, token=0.04, read=0.0)
    with (
        closing(LlamaModel(bundled("edge"), threads=1)) as model,
        llama_server(bundled("cloud")) as server,
        closing(PacedEngine(server, pace)) as engine,
        closing(
            Link("127.0.0.1", int(engine.url.rpartition(":")[2]), Quality(round_trip=0.1))
        ) as link,
        closing(LlamaServer(link.url)) as cloud,
    ):
        cloud.check(model.tokenizer)
        found = cloud_pace(cloud, model.tokenizer, 10.0)
        paced = PacedEdge(model, Pace((1,), (0.02,)))
        assert 0.02 <= edge_step(paced) < 0.06  # type: ignore[arg-type]
    assert found.consult >= pace.first + 0.1
    assert found.engine is not None
    assert found.engine < found.consult
    assert found.token is not None
    assert found.token == pytest.approx(pace.token, rel=0.5)
    assert found.requests == 4
    assert found.tokens > 4 * 20


def ending(token: int) -> Callable[[Sequence[int]], int]:
    """A script that says nothing else."""
    return lambda ids: token


def failing(number: int) -> Misdeed:
    """Every consult."""
    return "error"


def test_a_cloud_that_ends_at_once_has_no_speed_of_streaming() -> None:
    with (
        closing(LlamaModel(bundled("edge"), threads=1)) as model,
        closing(ScriptedEngine(tokenizer=model.tokenizer)) as engine,
        closing(LlamaServer(engine.url)) as cloud,
    ):
        end = min(model.tokenizer.eos_ids)
        engine.script = ending(end)
        cloud.check(model.tokenizer)
        assert cloud_pace(cloud, model.tokenizer, 10.0).token is None
        engine.fault = failing
        with pytest.raises(CloudError):
            cloud_pace(cloud, model.tokenizer, 10.0)
