"""A listener in this process, over an application that says what came."""

import asyncio
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import uvicorn.server
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from edgewise.listening.connections import Connections
from edgewise.listening.server import Listener
from edgewise.listening.sockets import listen
from edgewise.wire.protocol import MAX_FRAME
from tests.gateway.processes import until


class Here(NamedTuple):
    """Where it listens, who is connected, and how many endless answers have ended."""

    port: int
    open: Connections
    ended: list[str]

    def connect(self) -> socket.socket:
        """A new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def say(self, data: bytes) -> bytes:
        """What comes back, until the end."""
        with self.connect() as peer:
            peer.sendall(data)
            return heard(peer)

    def probe(self) -> bool:
        """Whether somebody who asks is answered."""
        return self.say(GET).startswith(b"HTTP/1.1 200")


GET = b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%b\r\n"
)


def heard(peer: socket.socket) -> bytes:
    """Everything until the other side hangs up."""
    found = b""
    try:
        while data := peer.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass
    return found


async def nap(seconds: float) -> None:
    """uvicorn's pauses, a tenth as long: it looks whether to end, and ends, by the clock alone."""
    await asyncio.sleep(seconds / 10)


vars(uvicorn.server)["asyncio"] = SimpleNamespace(**{**vars(asyncio), "sleep": nap})


@contextmanager
def in_thread(
    app: ASGIApp,
    port: int = 0,
    *,
    most: int = 100,
    grace: int = 0,
    begin: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> Iterator[tuple[Listener, int]]:
    """Serve in an event loop of its own, after `begin`, until the block ends; yields the port."""
    with listen("127.0.0.1", port) as listening:
        server = Listener(app, listening, connections=most, max_message=MAX_FRAME, grace=grace)

        async def serve() -> None:
            if begin is not None:
                await begin()
            await server.listen()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        until(lambda: server.started or not thread.is_alive(), pause=0.002)
        assert thread.is_alive(), "the server did not start"
        try:
            yield server, listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def listener(app: ASGIApp | None = None, *, most: int = 100, grace: int = 0) -> Iterator[Here]:
    """Serve this application, or one that says what came, until the block ends or SIGTERM."""
    ended: list[str] = []
    with in_thread(app or _app(ended), most=most, grace=grace) as (server, port):
        before = signal.signal(signal.SIGTERM, server.handle_exit)
        try:
            yield Here(port, server.open, ended)
        finally:
            signal.signal(signal.SIGTERM, before)


def _app(ended: list[str]) -> Starlette:
    async def plain(request: Request) -> Response:
        return PlainTextResponse("hello")

    async def length(request: Request) -> Response:
        try:
            return PlainTextResponse(str(len(await request.body())))
        except ClientDisconnect:
            return PlainTextResponse("gone")

    async def endless(request: Request) -> Response:
        async def chunks() -> AsyncGenerator[bytes]:
            try:
                while True:
                    yield b"x" * 65536
                    await asyncio.sleep(0)
            finally:
                ended.append("answer")

        return StreamingResponse(chunks())

    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        async for text in socket.iter_text():
            await socket.send_text(text)

    return Starlette(
        routes=[
            Route("/", plain, methods=["GET"]),
            Route("/length", length, methods=["POST"]),
            Route("/endless", endless),
            WebSocketRoute("/ws", echo),
        ]
    )
