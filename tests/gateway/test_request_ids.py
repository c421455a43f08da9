"""One name for a consult: at the device, in the gateway's log and at the engine."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.completion import Completion, Outgoing
from edgewise.errors import CloudError, CloudUnavailable
from edgewise.events import Consult
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.doubles.engine_dialects import Dialect
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.conftest import Told
from tests.gateway.doubles import PlainEngine
from tests.gateway.running import device, gateway


def decoding(cloud: CloudModel) -> Decoder:
    """Every token is asked for."""
    edge = ScriptedEdge(replying("Hello", prompt="say: "))
    cloud.check_vocabulary(edge.tokenizer)
    policy = Policy(threshold=0.5, deadline=60.0, speculate=0)
    return Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)


def consults(decoder: Decoder) -> list[Consult]:
    """Of an answer of three tokens."""
    with decoder.stream(decoder.edge.tokenizer.encode_prompt("say: "), max_tokens=3) as events:
        found = [event for event in events if isinstance(event, Consult)]
    assert found
    return found


def test_through_a_gateway_the_engine_gets_the_devices_name(told: Told) -> None:
    engine = PlainEngine()
    with gateway([engine]) as running, device(running) as cloud:
        names = [event.request_id for event in consults(decoding(cloud))]
    assert len(set(names)) == len(names) == 3
    assert [client.request_id for client in engine.clients] == names
    assert [line["request_id"] for line in told if line["event"] == "consult"] == names


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_straight_at_an_engine_the_request_carries_it(name: Dialect) -> None:
    server = ScriptedEngine(dialect=name)
    with closing(server), closing(open_engine(server.url, engine=name)) as cloud:
        names = [event.request_id for event in consults(decoding(cloud))]
    carried = [found.headers.get("X-Request-ID") for found in server.requests]
    assert [name for name in carried if name] == names
    assert len(set(names)) == len(names) > 0


@pytest.mark.parametrize("where", ["in the gateway", "at the engine"])
def test_what_fails_without_a_name_has_the_consults(
    told: Told, keys: Path, add: Callable[..., str], where: str
) -> None:
    def down(ids: object, n: int) -> Completion:
        raise CloudUnavailable("down")

    engine, secret = PlainEngine(), add(tokens_per_day=2)
    with gateway([engine], keys=keys) as running:
        sent, n = Outgoing(), 3 if where == "in the gateway" else 1
        with device(running, secret) as cloud:
            engine.act = down
            with pytest.raises(CloudError) as raised:
                cloud.open(Prompt((1,))).ask(ConsultRequest([1, 2], n, 30, sent=sent)).result()
    assert raised.value.request_id == sent.request_id
    assert f"(request {sent.request_id})" in str(raised.value)
    named = {line["request_id"] for line in told if line["event"].startswith("consult")}
    assert named == {sent.request_id}
