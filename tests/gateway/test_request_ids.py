"""One name for a consult: at the device, in the gateway's log and at the engine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from edgewise.cloud.base import CloudModel
from edgewise.cloud.gateway import GatewayCloud
from edgewise.completion import Completion, Sent
from edgewise.errors import CloudError, CloudUnavailable
from edgewise.events import Consult
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.constant import Constant
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from tests.cloud.dialects import DialectServer, Sglang, Vllm, sglang_routes, vllm_routes
from tests.gateway.doubles import PlainEngine
from tests.gateway.running import gateway

Lines = list[dict[str, Any]]


@pytest.fixture
def told() -> Iterator[Lines]:
    """The gateway's log."""
    with structlog.testing.capture_logs() as lines:
        yield lines


def decoding(cloud: CloudModel) -> Decoder:
    """Every token is asked for."""
    edge = ScriptedEdge(replying("Hello", prompt="say: "))
    cloud.check(edge.tokenizer)
    policy = Policy(threshold=0.5, deadline=5.0, speculate=0)
    return Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)


def consults(decoder: Decoder) -> list[Consult]:
    """Of an answer of three tokens."""
    with decoder.stream(decoder.edge.tokenizer.encode_prompt("say: "), max_tokens=3) as events:
        found = [event for event in events if isinstance(event, Consult)]
    assert found
    return found


def test_through_a_gateway_the_engine_gets_the_devices_name(told: Lines) -> None:
    engine = PlainEngine()
    with gateway([engine]) as running:
        cloud = GatewayCloud(running.url)
        names = [event.request_id for event in consults(decoding(cloud))]
        cloud.close()
    assert len(set(names)) == len(names) == 3
    assert [client.request_id for client in engine.clients] == names
    assert [line["request_id"] for line in told if line["event"] == "consult"] == names


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_straight_at_an_engine_the_request_carries_it(name: str) -> None:
    server = DialectServer(sglang_routes() if name == "sglang" else vllm_routes())
    cloud = Sglang(server.url) if name == "sglang" else Vllm(server.url)
    names = [event.request_id for event in consults(decoding(cloud))]
    cloud.close()
    server.close()
    carried = [found["X-Request-ID"] for found in server.headers if "X-Request-ID" in found]
    assert carried == names
    assert len(set(names)) == len(names) > 0


@pytest.mark.parametrize("where", ["in the gateway", "at the engine"])
def test_what_fails_without_a_name_has_the_consults(
    told: Lines, keys: Path, add: Callable[..., str], where: str
) -> None:
    def down(ids: object, n: int) -> Completion:
        raise CloudUnavailable("down")

    engine, secret = PlainEngine(), add(tokens_per_day=2)
    with gateway([engine], keys=keys) as running:
        cloud, sent = GatewayCloud(running.url, key=secret), Sent()
        cloud.check(ByteTokenizer())
        engine.act = down
        n = 3 if where == "in the gateway" else 1
        with pytest.raises(CloudError) as raised:
            cloud.open(Prompt((1,))).ask([1, 2], n, Sampling(), 30, sent).result()
        cloud.close()
    assert raised.value.request_id == sent.request_id
    assert f"(request {sent.request_id})" in str(raised.value)
    named = {line["request_id"] for line in told if line["event"].startswith("consult")}
    assert named == {sent.request_id}
