"""Engines and devices that are strange, at a gateway: whoever asked is answered, at once."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from edgewise.cloud.gateway import GatewayCloud
from edgewise.completion import Completion
from edgewise.engines import vocabulary_check
from edgewise.errors import CloudError, CloudProtocolError, CloudRejected, OtherVocabulary
from edgewise.events import Candidate, Consult, Event
from edgewise.gateway import fleet as fleets
from edgewise.gateway.bundled import BundledEngine
from edgewise.gateway.connection import WAITING_ASKS
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.constant import Constant
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from edgewise.wire.protocol import (
    PATH,
    VERSION,
    Ask,
    Failed,
    Ledger,
    Open,
    Push,
    Reply,
    encode,
    from_gateway,
    tokenizer_fingerprint,
)
from tests.background import Background
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.doubles import PlainEngine, letters
from tests.gateway.running import Running, gateway
from tests.llama_server_process import free_port

TOKENIZER = ByteTokenizer()
FINGERPRINT = tokenizer_fingerprint(TOKENIZER)
PROMPT, TEXT = "sky: ", "blue sky"


def check_of(ids: Sequence[int]) -> int:
    ledger = Ledger()
    ledger.put(0, ids)
    return ledger.check


def talk(running: Running, frames: Sequence[Any], replies: int, tokenizer: str) -> list[Any]:
    """Send frames in one go over a bare socket; the first `replies` frames that come back."""

    async def run() -> list[Any]:
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(running.url + PATH) as socket,
        ):
            await socket.send_bytes(encode(Open(VERSION, tokenizer)))
            await socket.receive()
            for frame in frames:
                await socket.send_bytes(encode(frame))
            return [from_gateway((await socket.receive(30)).data) for _ in range(replies)]

    return asyncio.run(run())


def asks(prompts: Sequence[Sequence[int]]) -> list[Ask]:
    return [
        Ask(number, 0, list(ids), check_of(ids), deadline=60_000)
        for number, ids in enumerate(prompts)
    ]


BAD: dict[str, Completion] = {
    "a negative count": Completion(ids=(97,), logprobs=(None,), cached=-5),
    "more cached than sent": Completion(ids=(97,), logprobs=(None,), cached=1 << 40),
    "2^64": Completion(ids=(1 << 64,), logprobs=(None,)),
    "2^64 among candidates": Completion(
        ids=(97,), logprobs=(None,), top=((Candidate(1 << 64, -1.0),),)
    ),
    "2^31": Completion(ids=(1 << 31,), logprobs=(None,)),
    "negative": Completion(ids=(-1,), logprobs=(None,)),
    "nothing": Completion(ids=(), logprobs=()),
    "an end with a bad meter": Completion(ids=(), logprobs=(), stopped=True, computed=-1),
    "too many": Completion(ids=(97, 97), logprobs=(None, None)),
    "no number": Completion(ids=(97,), logprobs=(float("nan"),)),
    "no time": Completion(ids=(97,), logprobs=(None,), engine_seconds=float("inf")),
}


@pytest.mark.parametrize("name", BAD)
def test_a_completion_that_is_none_is_told_at_once(name: str) -> None:
    with gateway([PlainEngine(act=lambda ids, n: BAD[name])]) as running:
        (reply,) = talk(running, asks([[1]]), 1, FINGERPRINT)
    assert isinstance(reply, Failed)
    assert (reply.ask, reply.reason) == (0, "protocol")


def test_an_end_token_that_the_engine_kept_passes() -> None:
    ended = Completion(ids=(), logprobs=(), stopped=True)
    with gateway([PlainEngine(act=lambda ids, n: ended)]) as running:
        (reply,) = talk(running, asks([[1]]), 1, FINGERPRINT)
    assert isinstance(reply, Reply)
    assert (reply.ids, reply.stopped) == ((), True)


def test_an_engine_that_cancels_itself_is_unavailable() -> None:
    def act(ids: Sequence[int], n: int) -> Completion:
        raise asyncio.CancelledError

    with gateway([PlainEngine(act=act)]) as running:
        (reply,) = talk(running, asks([[1]]), 1, FINGERPRINT)
    assert (reply.ask, reply.reason) == (0, "unavailable")


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\x1b[31mred", b"x" * 5000])
def test_a_request_id_that_is_none_loses_no_reply(name: bytes) -> None:
    """A header may hold any bytes; a frame holds text."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = [line for line in head.split(b"\r\n") if b"ontent-" in line[:8]]
            sizes = [int(x.split(b":")[1]) for x in length if b"ength" in x]
            await reader.readexactly(sizes[0] if sizes else 0)
            status, body = b"200 OK", b'{"status":"ok"}'
            if b"/v1/models" in head:
                body = b'{"data":[{"id":"x","owned_by":"llamacpp"}]}'
            elif b"/tokenize" in head:
                body = b'{"tokens":[1,2,3]}'
            elif b"/completion" in head and probed:
                status = b"400 Bad"
            elif b"/completion" in head:
                probed.append(1)
                body = b'{"tokens":[97]}'
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: " + str(len(body)).encode())
            writer.write(b"\r\nX-Request-Id: " + name + b"\r\n\r\n" + body)

    class Ones(ByteTokenizer):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return [1, 2, 3]

    probed: list[int] = []
    background = Background()
    server = background.do(asyncio.start_server(serve, "127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with gateway([url]) as running:
        (reply,) = talk(running, asks([[1]]), 1, tokenizer_fingerprint(Ones()))
    assert (reply.ask, reply.reason) == (0, "rejected")
    assert reply.request_id.isascii()
    assert reply.request_id.isprintable()
    assert len(reply.request_id) <= 64

    async def stop() -> None:
        server.close()

    background.close(stop())


def test_of_nine_asks_in_one_burst_one_fails() -> None:
    engine = ScriptedEngine()
    with gateway([engine.url]) as running:
        engine.seconds = 0.05
        burst = asks([[1, number] for number in range(WAITING_ASKS + 1)])
        replies = talk(running, burst, len(burst), FINGERPRINT)
    engine.close()
    failed = [reply for reply in replies if isinstance(reply, Failed)]
    assert [(reply.ask, reply.reason) for reply in failed] == [(WAITING_ASKS, "unavailable")]
    answered = [reply.ask for reply in replies if isinstance(reply, Reply)]
    assert answered == list(range(WAITING_ASKS))


def test_an_empty_prefix_is_rejected_whatever_the_engine() -> None:
    engine = PlainEngine()
    with gateway([engine]) as running:
        (reply,) = talk(running, asks([[]]), 1, FINGERPRINT)
        assert (reply.ask, reply.reason) == (0, "rejected")
        assert engine.asked == 0
        cloud = GatewayCloud(running.url)
        with pytest.raises(CloudRejected):
            cloud.open(Prompt(())).ask([], 1, Sampling(), 20).result()
        cloud.close()


def test_the_bundled_engine_rejects_what_it_cannot_mean(caplog: pytest.LogCaptureFixture) -> None:
    engine = BundledEngine()
    with gateway([engine]) as running:
        known = running.gateway.fleet.tokenizer
        size = running.gateway.fleet.size
        assert size is not None
        prompts = [[], [size], [1, size], [(1 << 31) - 1], [(1 << 32) - 1], [1, 2]]
        foreign = [size + 1] * 20
        pushes = [Push(0, foreign, check_of(foreign))]
        *failed, answered = talk(running, [*pushes, *asks(prompts)], len(prompts), known)
        assert [(reply.ask, reply.reason) for reply in failed] == [
            (number, "rejected") for number in range(len(prompts) - 1)
        ]
        assert isinstance(answered, Reply)
        # A push that means nothing to it is nobody's alarm.
        (after,) = talk(running, [*pushes, *asks([[1, 2]])], 1, known)
        assert isinstance(after, Reply)
    ours = [record for record in caplog.records if record.name.startswith("edgewise")]
    assert not [record for record in ours if record.levelname == "ERROR"]


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    made = ScriptedEngine()
    yield made
    made.close()


def streamed(cloud: GatewayCloud, on_error: Any, meanwhile: Callable[[], None]) -> Any:
    """A whole answer, `meanwhile` done after its third consult; its events, and what it raised."""
    edge = ScriptedEdge(replying(TEXT, prompt=PROMPT))
    policy = Policy(threshold=0.5, speculate=0, on_cloud_error=on_error, deadline=20.0)
    decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)
    events: list[Event] = []
    try:
        for event in decoder.stream(list(PROMPT.encode()), max_tokens=len(TEXT)):
            events.append(event)
            if isinstance(event, Consult) and event.index == 2:
                meanwhile()
    except CloudError as error:
        return events, error
    return events, None


@pytest.mark.parametrize("on_error", ["edge", "raise"])
def test_a_gateway_that_comes_back_with_another_vocabulary_in_mid_answer(on_error: Any) -> None:
    port = free_port()
    first = gateway([PlainEngine()], port=port)
    running = first.__enter__()
    cloud = GatewayCloud(running.url)
    cloud.check(TOKENIZER)
    other = PlainEngine()
    other.mark = 1
    opened: list[Any] = []

    def replace() -> None:
        first.__exit__(None, None, None)
        opened.append(gateway([other], port=port))
        opened[0].__enter__()

    try:
        events, raised = streamed(cloud, on_error, replace)
    finally:
        cloud.close()
        for one in opened:
            one.__exit__(None, None, None)
    outcomes = [event.outcome for event in events if isinstance(event, Consult)]
    assert outcomes[:3] == ["answered"] * 3
    assert other.asked == 0
    if on_error == "raise":
        assert type(raised) is OtherVocabulary
    else:
        assert raised is None
        assert outcomes[3] == "rejected"
        assert collect(iter(events)).text == "aaa" + TEXT[3:]


@pytest.mark.parametrize("on_error", ["edge", "raise"])
def test_an_engine_replaced_behind_its_gateway_in_mid_answer(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, on_error: Any
) -> None:
    """Not seen down: not one token of the other model is written, and `/ready` says no."""
    monkeypatch.setattr(vocabulary_check, "FRESH_SECONDS", -1.0)
    engine.script = lambda ids: 97
    with gateway([engine.url]) as running:
        cloud = GatewayCloud(running.url)
        cloud.check(TOKENIZER)

        def replace() -> None:
            engine.mark = 1
            engine.stop()
            engine.start()

        events, raised = streamed(cloud, on_error, replace)
        assert running.gateway.fleet.up == 0
        cloud.close()
    if on_error == "raise":
        assert isinstance(raised, CloudError)
    else:
        assert raised is None
        assert collect(iter(events)).text == "aaa" + TEXT[3:]


def test_ready_says_no_while_no_replica_is_proven(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "HEALTH_SECONDS", 0.05)

    async def ready(url: str) -> int:
        async with aiohttp.ClientSession() as http, http.get(url + "/ready") as response:
            return response.status

    def until(url: str, status: int) -> None:
        end = time.monotonic() + 60
        while asyncio.run(ready(url)) != status:
            assert time.monotonic() < end
            time.sleep(0.02)

    engine.size = 258
    with gateway([engine.url]) as running:
        assert asyncio.run(ready(running.url)) == 200
        engine.size = 259  # the same strings, another model
        until(running.url, 503)
        engine.size = 258
        until(running.url, 200)
        engine.stop()
        until(running.url, 503)
        engine.mark = 1
        engine.start()
        looked = engine.asked
        while engine.asked < looked + 2:  # it is probed, and not taken
            time.sleep(0.02)
        assert asyncio.run(ready(running.url)) == 503


def test_a_message_of_a_gateways_is_one_line_that_can_be_shown() -> None:
    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        told = "No.\n\x1b[2J" + "x" * 100_000
        await socket.send_bytes(encode(Failed(None, "protocol", told, None, "r\x1b")))
        return socket

    async def start() -> tuple[web.AppRunner, int]:
        app = web.Application()
        app.router.add_get(PATH, session)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    background = Background()
    runner, port = background.do(start())
    cloud = GatewayCloud(f"http://127.0.0.1:{port}")
    with pytest.raises(CloudProtocolError) as refused:
        cloud.open(Prompt((1,))).ask([1], 1, Sampling(), 20).result()
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000
    cloud.close()
    background.close(runner.cleanup())


def test_a_good_engine_is_none_of_this() -> None:
    with gateway([PlainEngine(act=letters)]) as running:
        (reply,) = talk(running, asks([[1]]), 1, FINGERPRINT)
    assert reply.ids == (97,)
