"""How a consult ends at the gateway: what the device hears, what the log and the metrics say."""

import asyncio
import json
import logging
import time
import urllib.request
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from structlog.testing import LogCapture

from edgewise.cloud.gateway import GatewayCloud
from edgewise.completion import Completion
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
)
from edgewise.keys import keys
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.wire import protocol
from edgewise.wire.protocol import PATH, VERSION, Ask, Ledger, Open, encode, from_gateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.doubles import PlainEngine, letters
from tests.gateway.running import Running, gateway

TOKENIZER = ByteTokenizer()


Told = list[MutableMapping[str, Any]]


@pytest.fixture
def told() -> Iterator[Told]:
    """The gateway's log."""
    capture = LogCapture()
    structlog.configure(processors=[structlog.processors.format_exc_info, capture])
    yield capture.entries
    structlog.reset_defaults()


def ask(running: Running, *, n: int = 1, deadline: float = 10.0) -> Completion | CloudError:
    cloud = GatewayCloud(running.url)
    try:
        cloud.check(TOKENIZER)
        return cloud.open(Prompt((1,))).ask([1], n, Sampling(), deadline).result()
    except CloudError as error:
        return error
    finally:
        cloud.close()


def metrics(running: Running) -> str:
    return urllib.request.urlopen(running.url + "/metrics").read().decode()


@pytest.mark.parametrize("bug", [RuntimeError("a bug"), ZeroDivisionError("a bug"), KeyError("x")])
def test_a_bug_is_logged_whole_and_answered_at_once(bug: Exception, told: Told) -> None:
    def act(ids: Sequence[int], n: int) -> Completion:
        raise bug

    with gateway([PlainEngine(act=act)]) as running:
        error = ask(running)
        counted = metrics(running)
    assert isinstance(error, CloudUnavailable)
    assert "log" in str(error)
    assert "a bug" not in str(error)
    assert 'asks_total{outcome="unavailable"} 1.0' in counted
    assert "device left" not in counted
    (line,) = [line for line in told if line["log_level"] == "error"]
    assert type(bug).__name__ in line["exception"]
    assert "Traceback" in line["exception"]


def test_a_connection_outlives_a_bug() -> None:
    broken = [RuntimeError("once")]

    def act(ids: Sequence[int], n: int) -> Completion:
        if broken:
            raise broken.pop()
        return letters(ids, n)

    with gateway([PlainEngine(act=act)]) as running:
        cloud = GatewayCloud(running.url)
        cloud.check(TOKENIZER)
        session = cloud.open(Prompt((1,)))
        with pytest.raises(CloudUnavailable):
            session.ask([1], 1, Sampling(), 30).result()
        assert session.ask([1], 2, Sampling(), 30).result().ids == (97, 97)
        assert len(running.gateway.connections) == 1
        cloud.close()


def test_a_push_that_meets_a_bug_is_logged_and_no_more(
    told: Told,
) -> None:
    def act(ids: Sequence[int], n: int) -> Completion:
        raise RuntimeError("in a prefill")

    engine = PlainEngine(act=act)
    with gateway([engine]) as running:
        cloud = GatewayCloud(running.url)
        cloud.check(TOKENIZER)
        session = cloud.open(Prompt((1,)))
        session.prefetch([1, 2, 3])
        end = time.monotonic() + 60
        while 'pushes_total{outcome="failed"}' not in metrics(running):
            assert time.monotonic() < end
        engine.act = letters
        assert session.ask([1, 2, 3], 1, Sampling(), 30).result().ids == (97,)
        cloud.close()
    assert any("in a prefill" in line.get("exception", "") for line in told)


def test_a_device_that_left_is_no_failure_of_the_engine(
    told: Told,
) -> None:
    engine = ScriptedEngine()

    async def leave(running: Running) -> None:
        ledger = Ledger()
        ledger.put(0, [1])
        async with aiohttp.ClientSession() as http:
            socket = await http.ws_connect(running.url + PATH)
            opening = Open(VERSION, protocol.tokenizer_fingerprint(TOKENIZER))
            await socket.send_bytes(encode(opening))
            from_gateway((await socket.receive()).data)
            engine.seconds = 0.3
            await socket.send_bytes(encode(Ask(1, 0, [1], ledger.check)))
            while not engine.running:
                await asyncio.sleep(0.01)
            await socket.close()

    with gateway([engine.url]) as running:
        asyncio.run(leave(running))
        end = time.monotonic() + 60
        while running.gateway.connections and time.monotonic() < end:
            time.sleep(0.01)
        counted = metrics(running)
    engine.close()
    assert 'asks_total{outcome="cancelled"} 1.0' in counted
    assert not [line for line in told if line["log_level"] in ("error", "warning")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CloudUnavailable, "unavailable"),
        (CloudRefused, "refused"),
        (CloudRejected, "rejected"),
        (CloudTimeout, "timeout"),
        (CloudProtocolError, "protocol"),
    ],
)
def test_a_device_hears_the_kind_of_an_engines_failure_and_nothing_it_says(
    error: type[CloudError], reason: str, told: Told
) -> None:
    def act(ids: Sequence[int], n: int) -> Completion:
        raise error("a secret prompt", request_id="req-7")

    with gateway([PlainEngine(act=act)]) as running:
        raised = ask(running)
        counted = metrics(running)
    assert type(raised) is error
    assert "secret" not in str(raised)
    assert raised.request_id == "req-7"
    assert "(request req-7)" in str(raised)
    assert f'asks_total{{outcome="{reason}"}} 1.0' in counted
    (line,) = [line for line in told if line["event"] == "consult failed"]
    assert (line["reason"], line["engine_request_id"]) == (reason, "req-7")
    assert "secret" not in json.dumps(line)


@pytest.mark.parametrize(
    ("fault", "error"),
    [("error", CloudUnavailable), ("busy", CloudUnavailable), ("declined", CloudRejected)],
)
def test_an_engines_request_id_goes_all_the_way(
    fault: Any, error: type[CloudError], told: Told
) -> None:
    engine = ScriptedEngine()
    with gateway([engine.url]) as running:
        number = engine.asked
        engine.fault = lambda asked: fault
        raised = ask(running)
    engine.close()
    assert type(raised) is error
    assert raised.request_id == f"scripted-{number}"
    assert any(line.get("engine_request_id") == raised.request_id for line in told)


def test_a_deadline_is_the_gateways_own_too() -> None:
    engine = ScriptedEngine()

    async def talk(running: Running) -> Any:
        ledger = Ledger()
        ledger.put(0, [1])
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(running.url + PATH) as socket,
        ):
            opening = Open(VERSION, protocol.tokenizer_fingerprint(TOKENIZER))
            await socket.send_bytes(encode(opening))
            from_gateway((await socket.receive()).data)
            await socket.send_bytes(encode(Ask(1, 0, [1], ledger.check, deadline=200)))
            return from_gateway((await socket.receive()).data)

    with gateway([engine.url]) as running:
        engine.seconds = 30.0
        frame = asyncio.run(talk(running))
    engine.close()
    assert (frame.ask, frame.reason) == (1, "timeout")


def test_sampling_out_of_bounds_is_rejected() -> None:
    with gateway([PlainEngine()]) as running:

        async def talk() -> Any:
            ledger = Ledger()
            ledger.put(0, [1])
            async with (
                aiohttp.ClientSession() as http,
                http.ws_connect(running.url + PATH) as socket,
            ):
                opening = Open(VERSION, protocol.tokenizer_fingerprint(TOKENIZER))
                await socket.send_bytes(encode(opening))
                from_gateway((await socket.receive()).data)
                drawn = (-1.0, 0, 1.0, 0.0, 0)
                await socket.send_bytes(encode(Ask(1, 0, [1], ledger.check, sampling=drawn)))
                return from_gateway((await socket.receive()).data)

        frame = asyncio.run(talk())
    assert (frame.reason, frame.ask) == ("rejected", 1)
    assert "temperature" in frame.message


def test_a_revoked_key_is_refused_in_an_open_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0.0)
    path = tmp_path / "keys.json"
    secret = keys.add_key(path, "laptop", asks_per_second=0, tokens_per_day=0, sessions=0)
    engine = PlainEngine()
    with gateway([engine], keys=path) as running:
        cloud = GatewayCloud(running.url, key=secret)
        cloud.check(TOKENIZER)
        session = cloud.open(Prompt((1,)))
        assert session.ask([1], 1, Sampling(), 30).result().ids == (97,)
        keys.revoke_key(path, "laptop")
        with pytest.raises(CloudRefused, match="revoked"):
            session.ask([1], 1, Sampling(), 30).result()
        assert engine.asked == 1
        cloud.close()


def test_sessions_have_salts_of_their_own() -> None:
    engine = PlainEngine()
    with gateway([engine]) as running:
        clouds = [GatewayCloud(running.url) for _ in range(2)]
        for cloud in clouds:
            cloud.check(TOKENIZER)
            cloud.open(Prompt((1,))).ask([1], 1, Sampling(), 30).result()
            cloud.close()
    first, second = engine.clients
    assert first.salt != second.salt
    assert first.session != second.session


def test_metrics_count_tokens_and_the_engines_cache(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with gateway([PlainEngine()]) as running:
        completion = ask(running, n=3)
        counted = metrics(running)
    assert isinstance(completion, Completion)
    assert 'cloud_tokens_total{key="anybody"} 3.0' in counted
    assert 'prompt_tokens_total{cache="hit"} 1.0' in counted
    assert 'opens_total{outcome="new"} 1.0' in counted
