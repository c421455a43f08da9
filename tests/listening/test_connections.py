"""Whoever connects and does not get on with it: closed, and never in the way of one who does."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from tests.gateway.processes import until
from tests.listening.running import GET, UPGRADE, Here, heard, listener

ONCE = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
POST = b"POST /length HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n"


@contextmanager
def connections(here: Here, count: int, begun: bytes = b"") -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        made = [stack.enter_context(here.connect()) for _ in range(count)]
        for peer in made:
            with contextlib.suppress(OSError):
                peer.sendall(begun)
        yield made


def until_with(act: Callable[[], object], true: Callable[[], bool]) -> None:
    """Wait until it is true, while the peer goes on as long as it may."""

    def looked() -> bool:
        with contextlib.suppress(OSError):
            act()
        return true()

    until(looked)


@pytest.mark.parametrize("begun", [b"", b"GET / HTT", POST, UPGRADE % b""])
def test_those_who_wait_make_room_for_one_who_asks(begun: bytes) -> None:
    with listener(most=20) as here, connections(here, 60, begun) as crowd:
        until(lambda: len(here.open) <= 20)
        assert all(here.probe() for _ in range(30))
        assert len(here.open) <= 20
        # The oldest had to go; of a body that had begun it may have been told, and a WebSocket that
        # never spoke had been let in.
        assert heard(crowd[0])[:10] in (b"", b"HTTP/1.1 4", b"HTTP/1.1 1")


def test_where_all_are_busy_the_newcomer_is_sent_away() -> None:
    with listener(most=4) as here, connections(here, 4, UPGRADE % b"") as crowd:
        for peer in crowd:
            assert peer.recv(4096).startswith(b"HTTP/1.1 101")
            peer.sendall(b"\x81\x82\0\0\0\0hi")
            assert peer.recv(4096) == b"\x81\x02hi"
        assert here.say(GET) == b""
        crowd[0].sendall(b"\x81\x82\0\0\0\0ho")
        assert crowd[0].recv(4096) == b"\x81\x02ho"
        crowd.pop().close()
        until(lambda: len(here.open) == 3)
        assert here.probe()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "begun",
    [b"", b"GET / HTTP/1.1\r\n", UPGRADE[:40], UPGRADE % b"", POST, ONCE, ONCE + b"GET / HT"],
)
def test_silence_ends(begun: bytes) -> None:
    with listener() as here, connections(here, 5, begun):
        until(lambda: len(here.open) == 5)
        until(lambda: not len(here.open))
        assert here.probe()


SLOW = {
    "a header": (b"GET / HTTP/1.1\r\nHost: here\r\nX: ", b"x"),
    "a body": (POST, b"x"),
    "pieces": (POST.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked"), b"1\r\nx\r\n"),
    "a body for nobody": (POST.replace(b"/length", b"/nowhere"), b"x"),
    "a body of GET": (GET.replace(b"Connection: close", b"Content-Length: 1000"), b"x"),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("head", "piece"), SLOW.values(), ids=SLOW)
def test_a_byte_at_a_time_ends(head: bytes, piece: bytes) -> None:
    """However it goes on, and whether or not it was answered meanwhile."""
    with listener() as here, here.connect() as slow:
        slow.sendall(head)
        until(lambda: len(here.open) == 1)
        until_with(lambda: slow.sendall(piece), lambda: not len(here.open))
        assert here.probe()


@pytest.mark.usefixtures("quick")
def test_who_does_not_read_does_not_hold_an_answer() -> None:
    """Also where it goes on sending requests."""
    with listener() as here, here.connect() as deaf:
        deaf.sendall(GET.replace(b"GET /", b"GET /endless"))
        more = b"GET / HTTP/1.1\r\n"
        until_with(lambda: deaf.sendall(more), lambda: here.ended == ["answer"])
        until(lambda: not len(here.open))


@pytest.mark.usefixtures("quick")
def test_who_reads_too_slowly_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it reads a little before each deadline."""
    monkeypatch.setattr("edgewise.listening.connections.LEAST_RATE", 1 << 40)
    with listener() as here, here.connect() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(GET.replace(b"GET /", b"GET /endless"))
        until_with(lambda: slow.recv(1 << 18), lambda: here.ended == ["answer"])
        until(lambda: not len(here.open))


@pytest.mark.usefixtures("quick")
def test_a_websocket_that_reads_no_pongs_ends() -> None:
    """Pings are answered at once, so they would pile up here."""
    ping = b"\x89\xfd" + bytes(4) + bytes(125)
    with listener() as here, here.connect() as deaf:
        deaf.sendall(UPGRADE % b"")
        assert deaf.recv(4096).startswith(b"HTTP/1.1 101")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                deaf.sendall(ping * 1000)
        until(lambda: not len(here.open))


def test_who_does_not_read_is_left_as_soon_as_the_application_leaves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edgewise.listening.connections.WAIT_SECONDS", 3600.0)

    async def leave(peer: WebSocket) -> None:
        await peer.accept()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                while True:
                    await peer.send_bytes(bytes(1 << 20))

    app = Starlette(routes=[WebSocketRoute("/ws", leave)])
    with listener(app) as here, here.connect() as deaf:
        deaf.sendall(UPGRADE % b"" + b"\x81\x82\0\0\0\0hi")
        until(lambda: len(here.open) == 1)
        begun = time.monotonic()
        until(lambda: not len(here.open))
        assert time.monotonic() - begun < 20  # else pings end it, after 40 s


class Gate:
    """An application whose answers wait until it is open; `left` says that its peer has left."""

    def __init__(self) -> None:
        self.asked, self.open, self.left = 0, False, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.asked += 1
        request = Request(scope, receive)
        while not self.open and not self.left:
            self.left = await request.is_disconnected()
            await asyncio.sleep(0.01)
        await PlainTextResponse("hello")(scope, receive, send)


@pytest.mark.parametrize("said", [GET, ONCE, ONCE + GET, ONCE + GET[:20]])
def test_who_ends_their_side_is_answered(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.listening.connections.PROBE_SECONDS", 0.1)
    gate = Gate()
    with listener(gate) as here, here.connect() as peer:
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(4) == b"HTTP"
        gate.open = True
        told = heard(peer)
        assert (told.count(b"200 OK"), gate.asked) == (said.count(b"\r\n\r\n"),) * 2
        assert told.endswith(b"hello")
        until(lambda: not len(here.open))


@pytest.mark.parametrize("said", [GET, GET.replace(b"1.1", b"1.0")])
def test_who_leaves_altogether_is_noticed(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.listening.connections.PROBE_SECONDS", 0.1)
    gate = Gate()
    with listener(gate) as here:
        with here.connect() as peer:
            peer.sendall(said)
            until(lambda: gate.asked == 1)
        until(lambda: gate.left and not len(here.open))


def test_half_a_body_is_no_request_and_leaves_nothing() -> None:
    with listener() as here:
        with here.connect() as peer:
            peer.sendall(POST + b"half")
            peer.shutdown(socket.SHUT_WR)
            assert b"200" not in heard(peer)
        for _ in range(200):
            with here.connect() as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.sendall(POST)
        until(lambda: not len(here.open))
        assert here.probe()
