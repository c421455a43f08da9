"""What a gateway promises, over real sockets to a scripted engine."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from edgewise.cloud.gateway import GatewayCloud
from edgewise.errors import (
    CloudError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    VocabularyMismatch,
)
from edgewise.events import Consult
from edgewise.keys.keys import add_key
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.uncertainty import MaxProb
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from edgewise.wire import protocol
from edgewise.wire.protocol import (
    PATH,
    VERSION,
    Ask,
    Cancel,
    Failed,
    FromGateway,
    Ledger,
    NeedFull,
    Open,
    Opened,
    Push,
    Reply,
    encode,
    from_gateway,
)
from tests.doubles.scripted_engine import ScriptedEngine, reply_to
from tests.gateway.running import Running, gateway

TOKENIZER = ByteTokenizer()
FINGERPRINT = protocol.tokenizer_fingerprint(TOKENIZER)
GREEDY = Sampling()


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    made = ScriptedEngine()
    yield made
    made.close()


@pytest.fixture
def running(engine: ScriptedEngine) -> Iterator[Running]:
    with gateway([engine.url]) as made:
        yield made


Socket = aiohttp.ClientWebSocketResponse


def raw(running: Running, talk: Callable[[Socket], Awaitable[Any]], secret: str = "") -> Any:
    """Whatever `talk` finds over a bare WebSocket."""

    async def run() -> Any:
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(running.url + PATH, headers=headers) as socket,
        ):
            return await asyncio.wait_for(talk(socket), 60)

    return asyncio.run(run())


async def said(socket: Socket) -> FromGateway:
    message = await socket.receive()
    assert message.type is aiohttp.WSMsgType.BINARY, message
    return from_gateway(message.data)


async def opened(socket: Socket, session: str = "") -> Opened:
    await socket.send_bytes(encode(Open(VERSION, FINGERPRINT, session)))
    frame = await said(socket)
    assert isinstance(frame, Opened)
    return frame


def check_of(ids: list[int]) -> int:
    ledger = Ledger()
    ledger.put(0, ids)
    return ledger.check


def cloud_of(running: Running, secret: str | None = None) -> GatewayCloud:
    cloud = GatewayCloud(running.url, key=secret)
    cloud.check(TOKENIZER)
    return cloud


def test_consults_send_only_what_is_new(running: Running) -> None:
    cloud = cloud_of(running)
    prompt = list(b"a prompt of some length")
    session = cloud.open(Prompt(tuple(prompt)))
    ids = list(prompt)
    for _ in range(5):
        completion = session.ask(ids, 1, GREEDY, 30).result()
        assert completion.ids == (reply_to(ids),)
        assert completion.top[0][0].id == completion.ids[0]
        ids += completion.ids
        session.prefetch(ids)
    again = session.ask([*prompt[:3], *b"xyz"], 2, GREEDY, 30).result()
    assert again.ids[0] == reply_to([*prompt[:3], *b"xyz"])
    session.close()
    cloud.close()


def test_the_next_answer_uses_the_link_of_the_last(running: Running) -> None:
    cloud = cloud_of(running)
    for text in (b"first", b"first, then more", b"another"):
        session = cloud.open(Prompt(tuple(text)))
        assert session.ask(list(text), 1, GREEDY, 30).result().ids == (reply_to(list(text)),)
        session.close()
        time.sleep(0.05)
    # What begins otherwise is another conversation.
    assert len(running.gateway.sessions) == 2
    cloud.close()


def test_another_vocabulary_is_refused(running: Running) -> None:
    class Other(ByteTokenizer):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return [byte ^ 1 for byte in text.encode()]

    cloud = GatewayCloud(running.url)
    with pytest.raises(VocabularyMismatch, match="one family"):
        cloud.check(Other())
    cloud.close()


def test_another_version_is_refused(running: Running) -> None:
    async def talk(socket: Socket) -> FromGateway:
        await socket.send_bytes(encode(Open(VERSION + 1, FINGERPRINT)))
        return await said(socket)

    frame = raw(running, talk)
    assert isinstance(frame, Failed)
    assert "version 1" in frame.message


BAD = {
    "ask before open": encode(Ask(1, 0, [1], 0)),
    "no msgpack": b"\xc1",
    "no frame": encode([99, 1]),
    "negative position": encode([3, 1, -1, [], 0]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_device_that_breaks_the_protocol_is_told_and_left(running: Running, name: str) -> None:
    async def talk(socket: Socket) -> tuple[FromGateway, int | None]:
        await socket.send_bytes(BAD[name])
        frame = await said(socket)
        await socket.receive()
        return frame, socket.close_code

    frame, code = raw(running, talk)
    assert isinstance(frame, Failed)
    assert (frame.ask, frame.reason, code) == (None, "protocol", 1002)


def test_a_text_message_is_no_frame(running: Running) -> None:
    async def talk(socket: Socket) -> FromGateway:
        await opened(socket)
        await socket.send_str("hello")
        return await said(socket)

    assert isinstance(raw(running, talk), Failed)


def test_a_prefix_that_is_not_held_must_be_sent_whole(running: Running) -> None:
    async def talk(socket: Socket) -> list[FromGateway]:
        await opened(socket)
        await socket.send_bytes(encode(Ask(1, 5, [1], 7)))  # beyond the end
        beyond = await said(socket)
        await socket.send_bytes(encode(Ask(2, 0, [1, 2], 7)))  # with a wrong check
        wrong = await said(socket)
        await socket.send_bytes(encode(Push(3, [1], 7)))
        push = await said(socket)
        await socket.send_bytes(encode(Ask(3, 0, [1, 2], check_of([1, 2]))))
        return [beyond, wrong, push, await said(socket)]

    *needed, reply = raw(running, talk)
    assert needed == [NeedFull(1), NeedFull(2), NeedFull(None)]
    assert isinstance(reply, Reply)
    assert reply.ids == (reply_to([1, 2]),)


def test_consults_of_a_session_do_not_overtake_each_other(engine: ScriptedEngine) -> None:
    engine.seconds = 0.02

    async def talk(socket: Socket) -> list[int]:
        await opened(socket)
        ids: list[int] = []
        for ask in range(8):
            ids.append(ask)
            await socket.send_bytes(encode(Ask(ask, ask, [ask], check_of(ids))))
        replies = [await said(socket) for _ in range(8)]
        assert all(isinstance(reply, Reply) for reply in replies)
        for ask, reply in enumerate(replies):
            assert isinstance(reply, Reply)
            assert reply.ids == (reply_to(list(range(ask + 1))),)
        return [reply.ask for reply in replies if isinstance(reply, Reply)]

    with gateway([engine.url]) as running:
        assert raw(running, talk) == list(range(8))
    assert engine.abandoned == 0


def test_a_cancelled_consult_stops_costing(engine: ScriptedEngine) -> None:
    engine.seconds = 30.0

    async def talk(socket: Socket) -> None:
        await opened(socket)
        await socket.send_bytes(encode(Ask(1, 0, [1], check_of([1]), deadline=60_000)))
        while not engine.running:
            await asyncio.sleep(0.01)
        await socket.send_bytes(encode(Cancel(1)))
        while engine.running:
            await asyncio.sleep(0.01)

    engine.seconds = 0.0
    with gateway([engine.url]) as running:
        engine.seconds = 30.0
        raw(running, talk)
        assert engine.abandoned == 1
        cloud = cloud_of(running)
        session = cloud.open(Prompt((1,)))
        with pytest.raises(CloudTimeout):
            session.ask([1], 1, GREEDY, 0.3).result()
        end = time.monotonic() + 60
        while engine.running and time.monotonic() < end:
            time.sleep(0.01)
        assert engine.running == 0
        cloud.close()


def test_too_many_consults_are_told_when_to_come_back(engine: ScriptedEngine) -> None:
    with gateway([engine.url], concurrency=1, queue=1) as running:
        engine.seconds = 0.3
        clouds = [cloud_of(running) for _ in range(6)]

        def ask(cloud: GatewayCloud) -> CloudError | None:
            try:
                cloud.open(Prompt((1,))).ask([1], 1, GREEDY, 30).result()
            except CloudError as error:
                return error
            return None

        with ThreadPoolExecutor(6) as pool:
            outcomes = list(pool.map(ask, clouds))
        for cloud in clouds:
            cloud.close()
    refused = [error for error in outcomes if error is not None]
    assert 2 <= len(refused) <= 5
    assert all(
        isinstance(error, CloudUnavailable) and "patience" in str(error) for error in refused
    )


def keys_file(tmp_path: Path, **limits: float) -> tuple[Path, str]:
    path = tmp_path / "keys.json"
    asked: dict[str, Any] = {"asks_per_second": 0, "tokens_per_day": 0, "sessions": 0, **limits}
    return path, add_key(path, "device", **asked)


def test_nobody_gets_in_without_a_key(
    engine: ScriptedEngine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, secret = keys_file(tmp_path)
    with gateway([engine.url], keys=path) as running:
        for wrong in (None, "ew-wrong", secret[:-1]):
            cloud = GatewayCloud(running.url, key=wrong)
            with pytest.raises(CloudRefused, match="EDGEWISE_CLOUD_KEY"):
                cloud.check(TOKENIZER)
            cloud.close()
        bodies = {_status(running.url + "/v1/models", key) for key in ("", "ew-wrong")}
        assert len(bodies) == 1
        assert _status(running.url + "/v1/models", secret)[0] == 200
        cloud = cloud_of(running, secret)
        prompt = list(b"a secret prompt")
        cloud.open(Prompt(tuple(prompt))).ask(prompt, 1, GREEDY, 30).result()
        metrics = urllib.request.urlopen(running.url + "/metrics").read().decode()
        cloud.close()
    told = capfd.readouterr()
    for text in (metrics, told.out, told.err):
        assert secret not in text
        assert "secret prompt" not in text
    assert "missing key" in told.out
    assert "wrong key" in told.out
    assert 'edgewise_gateway_asks_total{outcome="answered"} 1.0' in metrics


def _status(url: str, key: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, b""
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_key_has_its_sessions_rate_and_tokens(engine: ScriptedEngine, tmp_path: Path) -> None:
    path, secret = keys_file(tmp_path, sessions=1, asks_per_second=1.0, tokens_per_day=4)
    with gateway([engine.url], keys=path) as running:
        cloud = cloud_of(running, secret)
        other = GatewayCloud(running.url, key=secret)
        with pytest.raises(CloudUnavailable, match="1 sessions"):
            other.check(TOKENIZER)
        other.close()
        session = cloud.open(Prompt((1,)))
        assert len(session.ask([1], 4, GREEDY, 30).result().ids) == 4
        with pytest.raises(CloudUnavailable, match=r"tokens"):
            session.ask([1], 1, GREEDY, 30).result()
        cloud.close()


def test_a_session_cannot_be_taken_over(engine: ScriptedEngine, tmp_path: Path) -> None:
    path, mine = keys_file(tmp_path)
    theirs = add_key(path, "other", asks_per_second=0, tokens_per_day=0, sessions=0)

    async def hold(socket: Socket) -> Opened:
        frame = await opened(socket)
        await socket.send_bytes(encode(Ask(1, 0, [1, 2, 3], check_of([1, 2, 3]))))
        await said(socket)
        return frame

    with gateway([engine.url], keys=path) as running:
        held = raw(running, hold, mine)

        async def resume(socket: Socket) -> Opened:
            return await opened(socket, held.session)

        stranger = raw(running, resume, theirs)
        assert (stranger.known, stranger.session == held.session) == (0, False)
        owner = raw(running, resume, mine)
        assert (owner.known, owner.session, owner.check) == (3, held.session, check_of([1, 2, 3]))
        salts = {session.salt for session in running.gateway.sessions.all()}
        assert len(salts) == 2


def test_a_session_stays_at_its_replica_and_moves_when_that_is_gone() -> None:
    engines = [ScriptedEngine() for _ in range(3)]
    try:
        with gateway([engine.url for engine in engines]) as running:
            before = [engine.asked for engine in engines]
            clouds = [cloud_of(running) for _ in range(12)]
            sessions = [cloud.open(Prompt((1,))) for cloud in clouds]
            for _ in range(3):
                for session in sessions:
                    session.ask([1], 1, GREEDY, 30).result()
            asked = [e.asked - b for e, b in zip(engines, before, strict=True)]
            assert sum(asked) == 36
            assert all(count % 3 == 0 for count in asked)
            assert sum(count > 0 for count in asked) >= 2
            gone = asked.index(max(asked))
            kept = [engine.asked for engine in engines]
            engines[gone].stop()
            for session in sessions:
                session.ask([1], 1, GREEDY, 30).result()
            moved = [e.asked - k for e, k in zip(engines, kept, strict=True)]
            assert sum(moved) == 12
            assert all(
                m >= a // 3 for i, (m, a) in enumerate(zip(moved, asked, strict=True)) if i != gone
            )
            for cloud in clouds:
                cloud.close()
    finally:
        for engine in engines:
            if not engine.listening:
                engine.start()
            engine.close()


def test_pushes_warm_the_engine_while_nobody_waits(
    running: Running, engine: ScriptedEngine
) -> None:
    cloud = cloud_of(running)
    session = cloud.open(Prompt((1,)))
    session.prefetch([1, 2, 3])
    end = time.monotonic() + 60
    while engine.prefills == 0 and time.monotonic() < end:
        time.sleep(0.01)
    assert engine.prefills == 1
    cloud.close()


def test_readiness_follows_the_engines(running: Running, engine: ScriptedEngine) -> None:
    assert _status(running.url + "/ready", "")[0] == 200
    assert json.loads(urllib.request.urlopen(running.url + "/health").read())["protocol"] == 1
    engine.stop()
    end = time.monotonic() + 60
    while _status(running.url + "/ready", "")[0] == 200 and time.monotonic() < end:
        time.sleep(0.1)
    assert _status(running.url + "/ready", "")[0] == 503
    engine.start()
    while _status(running.url + "/ready", "")[0] == 503 and time.monotonic() < end:
        time.sleep(0.1)
    assert _status(running.url + "/ready", "")[0] == 200


def test_many_devices_each_get_their_own_answers(running: Running) -> None:
    def converse(number: int) -> int:
        cloud = cloud_of(running)
        ids = list(f"device {number} says ".encode())
        session = cloud.open(Prompt(tuple(ids)))
        for _ in range(20):
            completion = session.ask(ids, 1, GREEDY, 30).result()
            assert completion.ids == (reply_to(ids),)
            ids += completion.ids
            session.prefetch(ids)
        session.close()
        cloud.close()
        return number

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(converse, range(16))) == list(range(16))


def test_a_decoder_pushes_what_it_writes(running: Running, engine: ScriptedEngine) -> None:
    """The engine has computed most of what a consult means before it comes."""
    cloud = cloud_of(running)
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
    cloud.close()


def test_a_whole_answer_is_one_consult(running: Running) -> None:
    """As evaluation and training ask for it; more than the protocol allows is a sentence."""
    cloud = cloud_of(running)
    session = cloud.open(Prompt((1,)))
    assert len(session.ask([1], 320, GREEDY, 30).result().ids) == 320
    with pytest.raises(CloudRejected, match="at most 4096"):
        session.ask([1], 5000, GREEDY, 30).result()
    assert session.ask([1], 1, GREEDY, 30).result().ids == (reply_to([1]),)
    cloud.close()
