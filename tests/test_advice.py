"""Advice: the formulas by hand and by their limits, each outcome, and speeds of real models."""

import re
from contextlib import closing
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgewise.addresses import bundled
from edgewise.advice import (
    ANSWER,
    BLOCK,
    DECODED,
    PROMPT,
    MeasuredConditions,
    advise,
    cloud_alone,
    cloud_pace,
    cost_over_streaming,
    decoded,
    edge_step,
    excess,
)
from edgewise.cloud.engine import LlamaServer
from edgewise.costs.price import Price
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise
from edgewise.testing.link import Link, Quality
from edgewise.testing.scripted_edge import EOS, SIZE
from edgewise_lab.bench.pace import EnginePace, Pace, PacedEdge
from tests.doubles.paced_engine import PacedEngine
from tests.doubles.scripted_engine import ScriptedEngine
from tests.llama_server_process import llama_server

AT = MeasuredConditions(
    step=0.010, round_trip=0.100, consult=0.040, cloud_token=0.027, asked=0.05, changed=0.5
)
PRICE = Price(input=Decimal("0.28"), cached=Decimal("0.028"), output=Decimal("0.42"))

parts, seconds = st.floats(0, 1), st.floats(0.001, 0.5)
conditions = st.builds(
    MeasuredConditions,
    step=st.floats(0.001, 0.1),
    round_trip=st.floats(0, 0.5),
    consult=seconds,
    cloud_token=seconds,
    asked=parts,
    changed=parts,
    speculate=st.integers(0, 32),
    cached=parts,
)


def test_values_by_hand() -> None:
    at = replace(AT, step=0.005)
    assert cloud_alone(at) == pytest.approx((0.14 + 299 * 0.027) / 300)
    # 16 drafts end before 0.14 s have passed.
    assert excess(at) == pytest.approx(0.5 * 0.14 + 0.5 * (0.14 - 15 * 0.005))
    assert advise(at).routing == pytest.approx(0.005 + 0.05 * excess(at))
    assert advise(replace(at, asked=0.0)).routing == pytest.approx(at.step)
    assert excess(replace(at, speculate=128)) == pytest.approx(0.5 * 0.14)
    assert excess(replace(at, speculate=0)) == pytest.approx(0.14)


@given(conditions, st.floats(0, 0.3))
def test_limits(at: MeasuredConditions, more: float) -> None:
    assert at.changed * at.trip - 1e-9 <= excess(at) <= at.trip + 1e-9
    assert excess(replace(at, changed=1.0)) == pytest.approx(at.trip)
    longer = replace(at, round_trip=at.round_trip + more)
    assert excess(longer) >= excess(at) * (1 - 1e-9)
    assert (cloud_alone(longer) or 0) >= (cloud_alone(at) or 0)


def test_a_verified_answer_by_hand() -> None:
    """Corrected tokens wait for their block, and drop half of it and what was drafted meanwhile."""
    at = replace(AT, asked=0.03, step=0.015, verify=0.12)
    assert advise(at).routing == pytest.approx(0.015 + 0.03 * (0.12 + 3 * 0.015))
    # 300 tokens in blocks of 5, each of which bills its prompt and writes nothing.
    alone = PROMPT * 0.28 + ANSWER * 0.42
    assert cost_over_streaming(at, PRICE) == pytest.approx(60 * 650 * 0.28 / alone)
    assert "exact" in advise(at).sentences[2]
    assert "exact" not in advise(AT).sentences[2]
    quick, slow = advise(at), advise(replace(at, step=0.060))
    assert quick.sentences[2].startswith("verify: 27% less time")
    assert slow.fastest == "streaming"
    assert "2.5 times" in slow.sentences[2]


@pytest.mark.parametrize("verifies", [True, False])
def test_the_time_of_a_verification_is_measured_where_there_are_some(verifies: bool) -> None:
    edge, cloud = ScriptedEdge(noise(1)), ScriptedCloud(noise(2), verifies=verifies)
    found = cloud_pace(cloud, edge.tokenizer, 10.0)
    assert (found.verify is not None) is verifies
    assert found.requests == len(cloud.asks) == 4 + verifies
    assert [n for _, n in cloud.asks[4:]] == [0] * verifies
    first, last = cloud.asks[0][0], cloud.asks[-1][0]
    assert len(last) == len(first) + (4 + BLOCK if verifies else 3)


def test_bills_by_hand() -> None:
    """500 tokens of prompt, 300 of answer and 15 consults."""
    alone = PROMPT * 0.28 + ANSWER * 0.42
    assert cost_over_streaming(AT, PRICE) == pytest.approx(15 * (650 * 0.28 + 0.42) / alone)
    cached = 650 * (0.28 + 14 * 0.028) + 15 * 0.42
    assert cost_over_streaming(replace(AT, cached=1.0), PRICE) == pytest.approx(cached / alone)
    dear, cheap = advise(AT, price=PRICE), advise(replace(AT, cached=1, asked=0.01), price=PRICE)
    assert (cheap.cost_ratio or 0) < 1 < (dear.cost_ratio or 0)
    assert f"{dear.cost_ratio:.1f} times" in dear.sentences[1]


@given(conditions)
def test_bills_grow_with_what_is_asked(at: MeasuredConditions) -> None:
    def bill(**changed: float) -> float:
        return cost_over_streaming(replace(at, **changed), PRICE) or 0.0

    assert bill(asked=0.0) == 0
    assert bill() >= bill(asked=at.asked / 2)
    assert bill(cached=1.0) <= bill(cached=0.0)


def test_a_quick_edge_routes_and_a_slow_one_is_advised_to_stream() -> None:
    advice = advise(AT)
    assert advice.fastest == "edge"
    assert advice.edge < advice.routing < (advice.streaming or 0)
    speed, _, what = advice.sentences
    assert re.findall(r"[\d.]+(?= ms)", speed) == ["10", "13.5", "27.4"]
    assert "300 tokens" in speed
    assert re.findall(r"\d+%", what) == ["51%"]
    slow = replace(AT, step=0.060)
    advice = advise(slow)
    assert advice.fastest == "streaming"
    assert "27.4 ms" in advice.sentences[0]
    assert "2.3 times" in advice.sentences[2]
    assert "large model alone" in advise(slow, local=True).sentences[2]
    # Of two ways that take as long on this device, the better words are worth a little time.
    for pair, said in ((0.049, "large model alone"), (0.044, "route")):
        advice = advise(AT, local=True, routing=pair, streaming=0.05)
        assert said in advice.sentences[2].split(":")[0]


def test_what_is_not_known_is_said() -> None:
    unknown = advise(replace(AT, cloud_token=None))
    assert (unknown.streaming, unknown.cost_ratio) == (None, None)
    assert "not measured" in unknown.sentences[0]
    assert "nothing is billed" in advise(AT, local=True).sentences[1]
    free = advise(AT, price=Price(input=Decimal(0), cached=Decimal(0), output=Decimal(0)))
    assert free.cost_ratio is None
    assert "price is nothing" in free.sentences[1]


def test_what_is_decoded_includes_what_the_pair_waits_for() -> None:
    cloud, done = ScriptedCloud(noise(2), delay=0.02), list[None]()
    policy = Policy(threshold=0.5, on_cloud_error="raise")
    pair = Decoder(ScriptedEdge(noise(1)), router=Constant(1.0), policy=policy, cloud=cloud)
    found = decoded(pair, cloud, lambda: done.append(None))
    assert len(done) == 6
    assert found.edge < cloud.delay <= found.pair
    assert found.cloud is not None
    assert 0.2 * cloud.delay <= found.cloud, "five tokens at a time"
    pairs = [n for _, n in cloud.asks if n == 1]
    assert len(pairs) <= DECODED
    ends = ScriptedCloud(lambda ids: np.eye(SIZE, dtype=np.float32)[EOS])
    assert decoded(pair, ends).cloud is not None, "an end is a token too"


SLOW = Quality(round_trip=0.1)


@pytest.mark.deep
def test_the_speeds_of_a_real_pair_over_a_link() -> None:
    pace = EnginePace(first=0.05, token=0.04, read=0.0)
    with (
        LlamaModel(bundled("edge"), threads=1) as model,
        llama_server(bundled("cloud")) as server,
        closing(PacedEngine(server, pace)) as engine,
        closing(Link("127.0.0.1", int(engine.url.rpartition(":")[2]), SLOW)) as link,
        closing(LlamaServer(link.url)) as cloud,
    ):
        cloud.check_vocabulary(model.tokenizer)
        found = cloud_pace(cloud, model.tokenizer, 10.0)
        paced = PacedEdge(model, Pace((1,), (0.02,)))
        assert 0.02 <= edge_step(paced) < 0.06  # type: ignore[arg-type]
    assert found.consult >= pace.first + 0.1
    assert found.engine is not None
    assert found.engine < found.consult
    assert found.token == pytest.approx(pace.token, rel=0.5)
    assert found.requests == 5
    assert found.tokens > 4 * 20


def test_a_cloud_that_ends_at_once_has_no_speed_of_streaming() -> None:
    with (
        LlamaModel(bundled("edge"), threads=1) as model,
        closing(ScriptedEngine(tokenizer=model.tokenizer)) as engine,
        closing(LlamaServer(engine.url)) as cloud,
    ):
        end = min(model.tokenizer.eos_ids)
        engine.script = lambda ids: end
        cloud.check_vocabulary(model.tokenizer)
        assert cloud_pace(cloud, model.tokenizer, 10.0).token is None
        engine.fault = lambda number: "error"
        with pytest.raises(CloudError):
            cloud_pace(cloud, model.tokenizer, 10.0)
