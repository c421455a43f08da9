"""A listening process: uvicorn with our limits, a graceful end, and certificates that renew."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from edgewise.listening.connections import Connections, HttpProtocol, WebSocketProtocol
from edgewise.listening.sockets import ACCEPTS, BACKLOG
from edgewise.listening.tls import Certificate

RENEW_SECONDS = 1.0
"""Time between two looks at the certificate's files."""

log = logging.getLogger("edgewise.listening")

Drain = Callable[[], Coroutine[Any, Any, None]]


class Beside(NamedTuple):
    """A second socket, whose requests go to an application of its own."""

    socket: socket.socket
    app: ASGIApp


class Listener(uvicorn.Server):
    """Ends by SIGTERM or SIGINT with exit code 0. A second signal does not wait."""

    def __init__(
        self,
        app: ASGIApp,
        listening: socket.socket,
        *,
        connections: int,
        certificate: Certificate | None = None,
        beside: Beside | None = None,
        max_message: int | None = None,
        grace: int = 5,
        drain: Drain | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        """At most `connections`. WebSockets need `max_message`, bytes.

        `ready` is called once the server answers. `drain` runs after the signal, while connections
        are still accepted; answers under way then have `grace` seconds.
        """
        self.open = Connections(connections)
        protocol = cast(Any, WebSocketProtocol)
        super().__init__(
            uvicorn.Config(
                app if beside is None else _by_port(app, beside),
                http=cast(Any, partial(HttpProtocol, self.open)),
                ws="none" if max_message is None else cast(Any, partial(protocol, self.open)),
                ws_max_size=max_message or 1,
                ws_per_message_deflate=False,
                backlog=ACCEPTS,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=grace,
                ssl_context_factory=_context_of(certificate) if certificate else None,
            )
        )
        self._sockets = [listening, *([beside.socket] if beside else [])]
        self._certificate, self._drain, self._ready = certificate, drain, ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Serve until a signal, or `should_exit`."""
        self._loop = asyncio.get_running_loop()
        async with self._renewing():
            await self.serve(self._sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with a longer queue than what asyncio accepts at a time."""
        await super().startup(sockets)
        for each in self._sockets:
            each.listen(BACKLOG)
        if self.started and self._ready is not None:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the end. uvicorn's own would raise the signal again: an exit code of failure."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self.should_exit = self.force_exit = True
            return
        self._ending = asyncio.create_task(self._drained())

    async def _drained(self) -> None:
        try:
            if self._drain is not None:
                await self._drain()
        finally:
            self.should_exit = True

    @asynccontextmanager
    async def _renewing(self) -> AsyncGenerator[None]:
        async def renew(certificate: Certificate) -> None:
            while True:
                await asyncio.sleep(RENEW_SECONDS)
                certificate.refresh()

        renewing = asyncio.create_task(renew(self._certificate)) if self._certificate else None
        try:
            yield
        finally:
            if renewing is not None:
                renewing.cancel()


def _context_of(certificate: Certificate) -> Any:
    """A factory as uvicorn wants it."""

    def context(*_: object) -> ssl.SSLContext:
        return certificate.context

    return context


def _by_port(app: ASGIApp, beside: Beside) -> ASGIApp:
    port = int(beside.socket.getsockname()[1])

    async def dispatched(scope: Scope, receive: Receive, send: Send) -> None:
        at = scope.get("server")
        chosen = beside.app if at is not None and at[1] == port else app
        await chosen(scope, receive, send)

    return dispatched
