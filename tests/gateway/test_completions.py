"""What a gateway promises, and how a consult ends: what the device hears, the log, the metrics.

And its one name: at the device, in the gateway's log and at the engine.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.websockets import WebSocket

from edgewise import errors
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.gateway import GatewayCloud
from edgewise.completion import Outgoing
from edgewise.errors import CloudRefused, CloudRejected
from edgewise.events import Consult
from edgewise.gateway import app
from edgewise.gateway.app import Gateway
from edgewise.gateway.connection import Connection
from edgewise.gateway.fleet import Fleet
from edgewise.gateway.sessions import Sessions
from edgewise.keys.keys import ANYBODY, Keys
from edgewise.keys.limit_stores import limits_at
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant, MaxProb
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.doubles.engine_dialects import Dialect
from tests.doubles.scripted_engine import ScriptedEngine, reply_to
from tests.gateway.conftest import Told
from tests.gateway.doubles import PlainEngine, letters, raising
from tests.gateway.plain_client import PlainClient, check, opened
from tests.gateway.processes import until
from tests.gateway.running import Running, device, gateway


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
def test_a_device_hears_the_kind_of_an_engines_failure_and_no_more(reason: str, told: Told) -> None:
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
def test_what_fails_has_its_name(told: Told, keys: Path, add: Callable[..., str], n: int) -> None:
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


@pytest.fixture
def running(engine: ScriptedEngine) -> Iterator[Running]:
    with gateway([engine.url]) as made:
        yield made


@pytest.fixture
def cloud(running: Running) -> Iterator[GatewayCloud]:
    with device(running) as made:
        yield made


def test_a_device_that_breaks_the_protocol_is_told_and_left(running: Running) -> None:
    """Large frames too, which are taken apart in a thread."""
    for frame in ([99, 1], [3, 1, -1, [], 0], "text", {}, [99, "x" * 100_000]):
        with opened(running.url) as client:
            client.send(frame)
            assert client.receive()[:3] == [19, None, "protocol"]
            assert client.code() == 1002


def test_a_prefix_that_is_not_held_must_be_sent_whole(running: Running) -> None:
    with opened(running.url) as client:
        client.send([3, 1, 5, [1], 7])  # beyond the end
        assert client.receive() == [18, 1]
        client.send([3, 2, 0, [1, 2], 7])  # with a wrong check
        assert client.receive() == [18, 2]
        client.send([2, 3, [1], 7])
        assert client.receive() == [18, None]
        assert client.ask(3, 0, [1, 2])[:3] == [17, 3, [reply_to([1, 2])]]


def test_consults_do_not_overtake_each_other(running: Running, engine: ScriptedEngine) -> None:
    engine.seconds = 0.02
    with opened(running.url) as client:
        prefixes = [list(range(n + 1)) for n in range(8)]
        for n, ids in enumerate(prefixes):
            client.send([3, n, n, [n], check(ids)])
        for n, ids in enumerate(prefixes):
            assert client.receive()[:3] == [17, n, [reply_to(ids)]]
    assert engine.abandoned == 0


def models(running: Running, key: str) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx2.get(f"{running.url}/v1/models", headers=headers, trust_env=False)


def test_nobody_gets_in_without_a_key(
    engine: ScriptedEngine, keys: Path, add: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    secret = add("device")
    with gateway([engine.url], keys=keys) as running:
        for wrong in (None, "ew-wrong", secret[:-1]):
            with pytest.raises(CloudRefused, match="EDGEWISE_CLOUD_KEY"), device(running, wrong):
                pass
        unknown, wrong, known = (models(running, key) for key in ("", "ew-wrong", secret))
        assert (unknown.status_code, unknown.content) == (wrong.status_code, wrong.content)
        assert known.status_code == 200
        prompt = list(b"a secret prompt")
        with device(running, secret) as cloud:
            cloud.open(Prompt(tuple(prompt))).ask(ConsultRequest(prompt, 1, 30)).result()
        metrics = running.metrics()
    told = capfd.readouterr()
    for text in (metrics, told.out, told.err):
        assert secret not in text
        assert "secret prompt" not in text
    for said in ("missing key", "wrong key"):
        assert said in told.out
    for counted in ('consults_total{outcome="answered"}', 'cloud_tokens_total{key="device"}'):
        assert f"edgewise_gateway_{counted} 1.0" in metrics
    assert 'edgewise_gateway_opens_total{outcome="new"} 1.0' in metrics


def test_nobody_takes_a_session(
    engine: ScriptedEngine, keys: Path, add: Callable[..., str]
) -> None:
    mine, theirs = add("mine"), add("theirs")
    with gateway([engine.url], keys=keys) as running:
        with PlainClient(running.url, mine) as client:
            name = client.open()[2]
            client.ask(1, 0, [1, 2, 3])
        until(lambda: not running.gateway.connections)
        with PlainClient(running.url, theirs) as stranger:
            found = stranger.open(name)
            assert (found[2] == name, found[3]) == (False, 0)
        with PlainClient(running.url, mine) as owner:
            assert owner.open(name)[2:5] == [name, 3, check([1, 2, 3])]


@pytest.mark.deep
def test_many_devices_each_get_their_own_answers(running: Running) -> None:
    """What is new is prefetched; at the end they go back to their beginnings."""

    def converse(number: int) -> None:
        ids = list(f"device {number} says ".encode())
        with device(running) as cloud:
            session = cloud.open(Prompt(tuple(ids)))
            for _ in range(20):
                completion = session.ask(ConsultRequest(ids, 1, 30)).result()
                assert completion.ids == (reply_to(ids),)
                assert completion.top[0][0].id == completion.ids[0]
                ids += completion.ids
                session.prefetch(ids)
            back = [*ids[:3], *b"xyz"]
            assert session.ask(ConsultRequest(back, 2, 30)).result().ids[0] == reply_to(back)
            session.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(converse, range(16)))


def test_a_decoder_prefetches_what_it_writes(cloud: GatewayCloud, engine: ScriptedEngine) -> None:
    """The engine has computed most of what a consult means before it comes."""
    edge = ScriptedEdge(replying("x" * 60, prompt="sky: ", unsure=(50,)))
    decoder = Decoder(edge, router=MaxProb(), policy=Policy(threshold=0.3), cloud=cloud)
    with decoder.stream(list(b"sky: "), max_tokens=60) as events:
        consults: list[Consult] = []
        for event in events:
            # As slow as an edge model is, so that a prefill ends before the next one comes.
            time.sleep(0.005)
            consults += [event] if isinstance(event, Consult) else []
    assert [event.outcome for event in consults] == ["answered"]
    assert consults[0].sent_ids < 16
    assert engine.prefills >= 1


def test_a_whole_answer_is_one_consult(cloud: GatewayCloud) -> None:
    """As evaluation and training ask for it; more than the protocol allows is a sentence."""
    session = cloud.open(Prompt((1,)))
    assert len(session.ask(ConsultRequest([1], 320, 30)).result().ids) == 320
    with pytest.raises(CloudRejected, match="4096"):
        session.ask(ConsultRequest([1], 5000, 30)).result()
    assert session.ask(ConsultRequest([1], 1, 30)).result().ids == (reply_to([1]),)


@pytest.mark.anyio
async def test_who_has_just_left_does_not_end_the_drain() -> None:
    """Found by an attack: the drain failed, and consults of all others were cut off."""
    heard: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        if heard:
            raise OSError("nobody is there")
        heard.append(message)

    fleet, free = Fleet([PlainEngine()], concurrency=1, queue=1), limits_at(None, None)
    made = Gateway(fleet, Keys(None), Sessions(most=9, most_ids=9, idle=9.0), free)
    socket = WebSocket({"type": "websocket", "headers": []}, receive, send)
    await socket.accept()
    made.connections.add(Connection(made.consults, made.sessions, made.keys, socket, ANYBODY))
    await made.drain()
    assert made.draining


class Noting(PlainEngine):
    """Knows the loop of its gateway."""

    async def ready(self) -> None:
        self.loop = asyncio.get_running_loop()


def test_a_drain_that_takes_too_long_says_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device asks elsewhere, and the consult costs no more."""
    monkeypatch.setattr(app, "DRAIN_SECONDS", 0.2)
    engine = Noting()
    with gateway([engine]) as running, opened(running.url) as client:
        engine.go = asyncio.Event()
        client.send([3, 1, 0, [1], check([1]), 1, 60_000])
        until(lambda: engine.asked == 1)
        asyncio.run_coroutine_threadsafe(running.gateway.drain(), engine.loop).result(60)
        assert client.code() == 1001
        until(lambda: not running.gateway.connections)
        until(lambda: running.gateway.fleet.replicas[0].consults == 0)
