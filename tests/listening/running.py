"""A listener in this process, over an application that says what came."""

import asyncio
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from edgewise.listening.connections import Connections
from edgewise.listening.server import Listener
from edgewise.listening.sockets import listen
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


@contextmanager
def listener(app: ASGIApp | None = None, *, most: int = 100, grace: int = 0) -> Iterator[Here]:
    """Serve this application, or one that says what came, until the block ends or SIGTERM."""
    ended: list[str] = []
    listening = listen("127.0.0.1", 0)
    options = {"connections": most, "max_message": 1 << 20, "grace": grace}
    server = Listener(app or _app(ended), listening, **options)  # type: ignore[arg-type]
    thread = threading.Thread(target=lambda: asyncio.run(server.listen()))
    thread.start()
    before = signal.signal(signal.SIGTERM, server.handle_exit)
    until(lambda: server.started or not thread.is_alive())
    try:
        yield Here(listening.getsockname()[1], server.open, ended)
    finally:
        signal.signal(signal.SIGTERM, before)
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


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
