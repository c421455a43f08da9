"""How a consult ends at the gateway: what the device hears, what the log and the metrics say.

And its one name: at the device, in the gateway's log and at the engine.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from edgewise import errors
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.completion import Completion, Outgoing
from edgewise.events import Consult
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.doubles.engine_dialects import Dialect
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.conftest import Told
from tests.gateway.doubles import Act, PlainEngine, letters
from tests.gateway.plain_client import check, opened
from tests.gateway.processes import until
from tests.gateway.running import device, gateway


def raising(error: BaseException) -> Act:
    def act(ids: Sequence[int], n: int) -> Completion:
        raise error

    return act


@pytest.mark.parametrize("bug", [RuntimeError("a bug"), asyncio.CancelledError("a bug")])
def test_a_bug_is_logged_whole_and_answered_at_once(bug: BaseException, told: Told) -> None:
    """The connection outlives it, one in a prefill too."""
    engine = PlainEngine(act=raising(bug))
    with gateway([engine]) as running, opened(running.url) as client:
        failed = client.ask(1, 0, [1])
        assert (failed[:3], "a bug" in failed[3]) == ([19, 1, "unavailable"], False)
        engine.act = letters
        assert client.ask(2, 0, [1], 2)[2] == [97, 97]
        counted = running.metrics()
        (line,) = [line for line in told if line["log_level"] == "error"]
        engine.act = raising(RuntimeError("in a prefill"))
        client.prefetch(0, [1, 2, 3])
        until(lambda: 'prefetches_total{outcome="failed"}' in running.metrics())
        engine.act = letters
        assert client.ask(3, 3, [])[2] == [97]
    assert 'consults_total{outcome="unavailable"} 1.0' in counted
    assert "device left" not in counted
    assert type(bug).__name__ in line["exception"]
    assert "Traceback" in line["exception"]
    assert any("in a prefill" in line.get("exception", "") for line in told)


def test_a_device_that_left_is_no_failure_of_the_engine(engine: ScriptedEngine, told: Told) -> None:
    with gateway([engine.url]) as running:
        with opened(running.url) as client:
            engine.seconds = 0.3
            client.send([3, 1, 0, [1], check([1])])
            until(lambda: engine.running)
        until(lambda: not running.gateway.connections)
        counted = running.metrics()
    assert 'consults_total{outcome="cancelled"} 1.0' in counted
    assert not [line for line in told if line["log_level"] in ("error", "warning")]


@pytest.mark.parametrize(
    "reason", ["Unavailable", "Refused", "Rejected", "Timeout", "ProtocolError"]
)
def test_a_device_hears_the_kind_of_an_engines_failure_and_nothing_it_says(
    reason: str, told: Told
) -> None:
    error = getattr(errors, f"Cloud{reason}")
    reason = reason.removesuffix("Error").lower()
    engine = PlainEngine(act=raising(error("a secret prompt", request_id="req-7")))
    with gateway([engine]) as running:
        with device(running) as cloud, pytest.raises(error) as raised:
            cloud.open(Prompt((1,))).ask(ConsultRequest([1], 1, 10)).result()
        counted = running.metrics()
    assert "secret" not in str(raised.value)
    assert raised.value.request_id == "req-7"
    assert "(request req-7)" in str(raised.value)
    assert f'consults_total{{outcome="{reason}"}} 1.0' in counted
    (line,) = [line for line in told if line["event"] == "consult failed"]
    assert (line["reason"], line["engine_request_id"]) == (reason, "req-7")
    assert "secret" not in json.dumps(line)


def consulted(cloud: CloudModel) -> list[str]:
    """Names of the consults of an answer of three tokens, each of which is asked for."""
    edge = ScriptedEdge(replying("Hello", prompt="say: "))
    cloud.check_vocabulary(edge.tokenizer)
    policy = Policy(threshold=0.5, deadline=60.0, speculate=0)
    decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)
    with decoder.stream(edge.tokenizer.encode_prompt("say: "), max_tokens=3) as events:
        names = [event.request_id for event in events if isinstance(event, Consult)]
    assert len(set(names)) == len(names) == 3
    return names


def test_through_a_gateway_the_engine_gets_the_devices_name(told: Told) -> None:
    engine = PlainEngine()
    with gateway([engine]) as running, device(running) as cloud:
        names = consulted(cloud)
    assert [client.request_id for client in engine.clients] == names
    assert [line["request_id"] for line in told if line["event"] == "consult"] == names


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_straight_at_an_engine_the_request_carries_it(name: Dialect) -> None:
    server = ScriptedEngine(dialect=name)
    with closing(server), closing(open_engine(server.url, engine=name)) as cloud:
        names = consulted(cloud)
    carried = [found.headers.get("X-Request-ID") for found in server.requests]
    assert [name for name in carried if name] == names


@pytest.mark.parametrize("n", [1, 3], ids=["at the engine", "in the gateway"])
def test_what_fails_without_a_name_has_the_consults(
    told: Told, keys: Path, add: Callable[..., str], n: int
) -> None:
    engine, secret = (
        PlainEngine(act=raising(errors.CloudUnavailable("down"))),
        add(tokens_per_day=2),
    )
    with gateway([engine], keys=keys) as running:
        sent = Outgoing()
        with device(running, secret) as cloud, pytest.raises(errors.CloudError) as raised:
            cloud.open(Prompt((1,))).ask(ConsultRequest([1, 2], n, 30, sent=sent)).result()
    assert raised.value.request_id == sent.request_id
    assert f"(request {sent.request_id})" in str(raised.value)
    named = {line["request_id"] for line in told if line["event"].startswith("consult")}
    assert named == {sent.request_id}
