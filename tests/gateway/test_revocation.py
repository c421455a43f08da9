"""A key out of force: its open sockets are closed, and what it had in flight ends."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from edgewise.cloud.gateway import GatewayCloud
from edgewise.completion import Completion
from edgewise.errors import CloudRefused
from edgewise.keys.keys import Key, add_key, revoke_key
from edgewise.keys.limit_stores import SqliteLimits
from edgewise.keys.limits import Cost, Granted
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
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
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.doubles import PlainEngine, letters
from tests.gateway.running import Running, gateway

TOKENIZER = ByteTokenizer()
PUSHES = 50

Socket = aiohttp.ClientWebSocketResponse


class Made(NamedTuple):
    """A file of keys, and the secret of its key `laptop`."""

    path: Path
    secret: str


def made(tmp_path: Path, **limits: Any) -> Made:
    path = tmp_path / "keys.json"
    asked: dict[str, Any] = {"asks_per_second": 0, "tokens_per_day": 0, "sessions": 0, **limits}
    return Made(path, add_key(path, "laptop", **asked))


async def said(socket: Socket) -> FromGateway:
    message = await socket.receive()
    assert message.type is aiohttp.WSMsgType.BINARY, message
    return from_gateway(message.data)


def talk(running: Running, secret: str, work: Callable[[Socket], Awaitable[Any]]) -> Any:
    """Whatever `work` finds over an open session."""

    async def run() -> Any:
        headers = {"Authorization": f"Bearer {secret}"}
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(running.url + PATH, headers=headers) as socket,
        ):
            opening = Open(VERSION, protocol.tokenizer_fingerprint(TOKENIZER))
            await socket.send_bytes(encode(opening))
            assert isinstance(await said(socket), Opened)
            return await asyncio.wait_for(work(socket), 30)

    return asyncio.run(run())


async def last_words(socket: Socket) -> tuple[FromGateway, int | None]:
    """The frame before the close, and the close's code."""
    frame = await said(socket)
    while not (isinstance(frame, Failed) and frame.ask is None):
        frame = await said(socket)
    await socket.receive()
    return frame, socket.close_code


def push(position: int, ids: Sequence[int], whole: Sequence[int]) -> bytes:
    return encode(Push(position, list(ids), Ledger(whole).check))


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    made = ScriptedEngine()
    yield made
    made.close()


def revoked(keys: Made) -> None:
    revoke_key(keys.path, "laptop")


def emptied(keys: Made) -> None:
    keys.path.write_text('{"format": 1, "keys": []}')


def expired(keys: Made) -> None:
    now = datetime.now(UTC).isoformat()
    content = keys.path.read_text()
    keys.path.write_text(content.replace('"expires": null', f'"expires": "{now}"'))
    assert keys.path.read_text() != content


def replaced(keys: Made) -> None:
    revoke_key(keys.path, "laptop")
    add_key(keys.path, "laptop", asks_per_second=0, tokens_per_day=0, sessions=0)


@pytest.mark.parametrize("end", [revoked, emptied, expired, replaced])
def test_a_silent_socket_is_closed_as_well(tmp_path: Path, end: Callable[[Made], None]) -> None:
    """The device sends nothing at all."""
    keys = made(tmp_path)

    async def work(socket: Socket) -> tuple[FromGateway, int | None]:
        end(keys)
        return await last_words(socket)

    with gateway([PlainEngine()], keys=keys.path) as running:
        frame, code = talk(running, keys.secret, work)
        until(lambda: not running.gateway.connections)
    assert isinstance(frame, Failed)
    assert (frame.reason, code) == ("refused", 1008)
    assert "revoked" in frame.message


def test_other_keys_stay(tmp_path: Path) -> None:
    keys = made(tmp_path)
    other = add_key(keys.path, "phone", asks_per_second=0, tokens_per_day=0, sessions=0)

    async def work(socket: Socket) -> FromGateway:
        revoke_key(keys.path, "laptop")
        await asyncio.sleep(1.0)
        await socket.send_bytes(encode(Ask(1, 0, [1], Ledger([1]).check)))
        return await said(socket)

    with gateway([PlainEngine()], keys=keys.path) as running:
        assert isinstance(talk(running, other, work), Reply)


def test_pushes_of_a_revoked_key_cost_nothing(tmp_path: Path, engine: ScriptedEngine) -> None:
    """Found by an attack: 50 pushes were 50 prefills."""
    keys = made(tmp_path)

    async def work(socket: Socket) -> int:
        await socket.send_bytes(push(0, [1], [1]))
        while not engine.prefills:
            await asyncio.sleep(0.01)
        revoke_key(keys.path, "laptop")
        await asyncio.sleep(1.0)
        before = engine.prefills
        ids = [1]
        for number in range(PUSHES):
            ids.append(number)
            try:
                await socket.send_bytes(push(len(ids) - 1, ids[-1:], ids))
            except ConnectionError:
                break
            await asyncio.sleep(0.01)
        return engine.prefills - before

    with gateway([engine.url], keys=keys.path) as running:
        assert talk(running, keys.secret, work) == 0
    assert engine.prefills == 1


def test_a_consult_in_flight_ends(tmp_path: Path, engine: ScriptedEngine) -> None:
    keys = made(tmp_path)
    with gateway([engine.url], keys=keys.path) as running:
        cloud = GatewayCloud(running.url, key=keys.secret)
        cloud.check(TOKENIZER)
        engine.seconds = 60.0
        flying = cloud.open(Prompt((1,))).ask([1], 1, Sampling(), 50)
        until(lambda: engine.running == 1)
        revoke_key(keys.path, "laptop")
        with pytest.raises(CloudRefused, match="revoked"):
            flying.result(60)
        until(lambda: engine.running == 0)
        assert engine.abandoned == 1
        cloud.close()


def test_a_device_that_reads_nothing_is_served_no_more(tmp_path: Path) -> None:
    """It is told what it may never read, and nothing of it is taken any more."""
    keys = made(tmp_path)
    served = PlainEngine()

    async def work(socket: Socket) -> int:
        revoke_key(keys.path, "laptop")
        await asyncio.sleep(1.5)
        for number in range(20):
            try:
                await socket.send_bytes(encode(Ask(number, 0, [1], Ledger([1]).check)))
            except ConnectionError:
                break
        await asyncio.sleep(0.2)
        return served.asked

    with gateway([served], keys=keys.path) as running:
        assert talk(running, keys.secret, work) == 0


def test_a_used_up_key_gets_no_prefill(tmp_path: Path, engine: ScriptedEngine) -> None:
    """Found by an attack: 300 prefills by a key whose day was used up."""
    keys = made(tmp_path, tokens_per_day=1)

    async def work(socket: Socket) -> FromGateway:
        await socket.send_bytes(encode(Ask(1, 0, [1], Ledger([1]).check)))
        assert isinstance(await said(socket), Reply)
        ids = [1]
        for number in range(PUSHES):
            ids.append(number)
            await socket.send_bytes(push(len(ids) - 1, ids[-1:], ids))
            await asyncio.sleep(0.005)
        # Its ids are held all the same: only the new one goes with the next consult.
        ids.append(7)
        await socket.send_bytes(encode(Ask(2, len(ids) - 1, [7], Ledger(ids).check)))
        return await said(socket)

    with gateway([engine.url], keys=keys.path) as running:
        frame = talk(running, keys.secret, work)
    assert isinstance(frame, Failed)
    assert (frame.ask, frame.reason) == (2, "unavailable")
    assert (frame.retry_after or 0) > 1000 or datetime.now(UTC).hour == 23
    assert engine.prefills == 0


def test_pushed_ids_are_charged(tmp_path: Path, engine: ScriptedEngine) -> None:
    keys = made(tmp_path, ids_per_second=1.0)

    async def work(socket: Socket) -> FromGateway:
        for number in range(PUSHES):
            ids = [number] * 100
            await socket.send_bytes(push(0, ids, ids))
            await asyncio.sleep(0.005)
        await socket.send_bytes(encode(Ask(1, 0, [1], Ledger([1]).check)))
        return await said(socket)

    with gateway([engine.url], keys=keys.path) as running:
        frame = talk(running, keys.secret, work)
    assert isinstance(frame, Failed)
    assert (frame.reason, "token ids" in frame.message) == ("unavailable", True)
    assert (frame.retry_after or 0) > 60_000
    assert engine.prefills <= 1


def test_a_key_is_charged_for_consults_it_cancels(tmp_path: Path) -> None:
    keys = made(tmp_path, ids_per_second=1.0)
    whole = list(range(500))

    async def work(socket: Socket) -> FromGateway:
        check = Ledger(whole).check
        for number in range(5):
            await socket.send_bytes(encode(Ask(number, 0, whole, check)))
            await socket.send_bytes(encode(Cancel(number)))
        frames: list[FromGateway] = []
        # The first of them may be what pays for those that never began.
        for number in (8, 9):
            await socket.send_bytes(encode(Ask(number, 0, [1], Ledger([1]).check)))
            while not frames or getattr(frames[-1], "ask", None) != number:
                frames.append(await said(socket))
        return frames[-1]

    with gateway([PlainEngine()], keys=keys.path) as running:
        frame = talk(running, keys.secret, work)
    assert isinstance(frame, Failed)
    assert "token ids" in frame.message


@pytest.mark.parametrize("rate", [0.0, 10.0**9])
def test_full_prefixes_are_taken_in_their_order(tmp_path: Path, rate: float) -> None:
    """Large frames are taken apart elsewhere; what follows them waits."""
    keys = made(tmp_path, ids_per_second=rate)
    seen: list[Sequence[int]] = []

    def act(ids: Sequence[int], n: int) -> Completion:
        seen.append(list(ids))
        return letters(ids, n)

    async def work(socket: Socket) -> list[FromGateway]:
        ids = list(range(protocol.MAX_IDS - 10))
        await socket.send_bytes(push(0, ids, ids))
        frames = []
        for number in range(5):
            ids.append(number)
            ask = Ask(number, len(ids) - 1, [number], Ledger(ids).check)
            await socket.send_bytes(encode(ask))
            frames.append(await said(socket))
        await socket.send_bytes(encode(Ask(9, 0, ids, 0)))
        return [*frames, await said(socket)]

    with gateway([PlainEngine(act=act)], keys=keys.path) as running:
        *replies, wrong = talk(running, keys.secret, work)
    assert all(isinstance(reply, Reply) for reply in replies)
    assert seen[-1] == [*range(protocol.MAX_IDS - 10), 0, 1, 2, 3, 4]
    assert wrong == NeedFull(9)


def test_large_frames_without_end_are_read_at_the_keys_own_rate(tmp_path: Path) -> None:
    keys = made(tmp_path, ids_per_second=10.0)
    ids = [7] * 20_000

    async def work(socket: Socket) -> tuple[FromGateway, int | None]:
        for _ in range(3):
            await socket.send_bytes(push(0, ids, ids))
        return await last_words(socket)

    with gateway([PlainEngine()], keys=keys.path) as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgewise.gateway.connection.PAUSE_SECONDS", 0.2)
        frame, code = talk(running, keys.secret, work)
    assert isinstance(frame, Failed)
    assert (frame.reason, code) == ("unavailable", 1013)
    assert (frame.retry_after or 0) > 0


def test_a_large_frame_that_is_none_ends_the_connection(tmp_path: Path) -> None:
    keys = made(tmp_path)

    async def work(socket: Socket) -> tuple[FromGateway, int | None]:
        await socket.send_bytes(b"\xc1" * 100_000)
        return await last_words(socket)

    with gateway([PlainEngine()], keys=keys.path) as running:
        frame, code = talk(running, keys.secret, work)
    assert isinstance(frame, Failed)
    assert (frame.reason, code) == ("protocol", 1002)


def test_a_key_cannot_fill_the_memory(tmp_path: Path) -> None:
    """Found by an attack: 60 sessions of 131,072 ids, left behind, were 743 MB."""
    keys = made(tmp_path, ids=50_000, ids_per_second=0)
    ids = [70_000] * 20_000

    async def work(socket: Socket) -> FromGateway:
        await socket.send_bytes(encode(Ask(1, 0, ids, Ledger(ids).check)))
        return await said(socket)

    with gateway([PlainEngine()], keys=keys.path) as running:
        for _ in range(6):
            assert isinstance(talk(running, keys.secret, work), Reply)
        assert running.gateway.sessions.held("laptop") <= 50_000
        assert running.gateway.sessions.ids <= 50_000


class Slow(SqliteLimits):
    """Takes its time."""

    async def take(self, key: Key, cost: Cost) -> Granted:
        granted = await super().take(key, cost)
        await asyncio.sleep(0.05)
        return granted


@pytest.mark.parametrize("how", ["engine fails", "cancelled", "device leaves", "deadline"])
def test_tokens_that_were_not_written_are_given_back(
    tmp_path: Path, engine: ScriptedEngine, how: str
) -> None:
    keys = made(tmp_path, tokens_per_day=20, ids_per_second=20_000)
    whole = Ask(1, 0, [1], Ledger([1]).check, 20)

    async def spoil(socket: Socket) -> None:
        if how == "engine fails":
            engine.fault = lambda number: "declined"
            await socket.send_bytes(encode(whole))
            assert isinstance(await said(socket), Failed)
            engine.fault = lambda number: None
            return
        engine.seconds = 60.0
        deadline = 300 if how == "deadline" else 60_000
        await socket.send_bytes(encode(Ask(1, 0, [1], whole.check, 20, deadline)))
        while not engine.running:
            await asyncio.sleep(0.01)
        if how == "cancelled":
            await socket.send_bytes(encode(Cancel(1)))
        if how == "deadline":
            assert isinstance(await said(socket), Failed)
        if how != "device leaves":
            while engine.running:
                await asyncio.sleep(0.01)

    async def ask_again(socket: Socket) -> FromGateway:
        await asyncio.sleep(0.2)
        await socket.send_bytes(encode(whole))
        return await said(socket)

    with gateway([engine.url], keys=keys.path, limits=Slow(tmp_path / "limits")) as running:
        talk(running, keys.secret, spoil)
        until(lambda: not running.gateway.connections and not engine.running)
        engine.seconds = 0.0
        reply = talk(running, keys.secret, ask_again)
        assert isinstance(reply, Reply), reply
        assert len(reply.ids) == 20
        over = talk(running, keys.secret, ask_again)
    assert isinstance(over, Failed)
    assert over.reason == "unavailable"


def test_a_quota_is_never_overshot(tmp_path: Path) -> None:
    """Found by an attack: with 20 tokens a day, one consult wrote 4,096."""
    keys = made(tmp_path, tokens_per_day=20)

    async def work(socket: Socket) -> list[FromGateway]:
        frames = []
        for number, n in enumerate((4096, 21, 13, 8, 7, 1)):
            ask = Ask(number, 0, [1], Ledger([1]).check, n)
            await socket.send_bytes(encode(ask))
            frames.append(await said(socket))
        return frames

    with gateway([PlainEngine()], keys=keys.path) as running:
        frames = talk(running, keys.secret, work)
    told = [
        len(one.ids) if isinstance(one, Reply) else getattr(one, "reason", "") for one in frames
    ]
    assert told == ["rejected", "rejected", 13, "unavailable", 7, "unavailable"]


def test_two_gateways_share_a_quota(tmp_path: Path) -> None:
    keys = made(tmp_path, tokens_per_day=30)

    async def work(socket: Socket) -> int:
        written = 0
        for number in range(10):
            await socket.send_bytes(encode(Ask(number, 0, [1], Ledger([1]).check, 4)))
            frame = await said(socket)
            written += len(frame.ids) if isinstance(frame, Reply) else 0
        return written

    shared = [SqliteLimits(tmp_path / "limits") for _ in range(2)]
    with (
        gateway([PlainEngine()], keys=keys.path, limits=shared[0]) as first,
        gateway([PlainEngine()], keys=keys.path, limits=shared[1]) as second,
    ):
        written = [talk(running, keys.secret, work) for running in (first, second)]
    assert written == [28, 0]
