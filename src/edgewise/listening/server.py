"""The listening process: uvicorn with limits on connections, and a graceful end."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from edgewise.listening.connections import MAX_HEADER, Connections, HttpProtocol, WebSocketProtocol
from edgewise.listening.sockets import ACCEPTS, BACKLOG

GRACE_SECONDS = 20
"""Seconds after a signal within which answers under way must end."""

LAST_WORDS_SECONDS = 2.0
"""Seconds in which an answer that was cancelled may still tell its client so."""

TICK_SECONDS = 0.1
"""Seconds between two looks for a second signal during a drain."""


class Listener(uvicorn.Server):
    """A uvicorn server that limits its connections, and ends gracefully after SIGTERM or SIGINT.

    The exit code is 0 then. A second signal cuts answers off after `LAST_WORDS_SECONDS`.
    """

    def __init__(
        self,
        app: ASGIApp,
        listening: socket.socket,
        *,
        connections: int,
        tls: ssl.SSLContext | None = None,
        max_message: int | None = None,
        grace: int = GRACE_SECONDS,
        drain: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Serve `app` on the socket `listening`, with at most `connections` open at a time.

        With `tls` it is served by HTTPS alone. `max_message` is the size limit of a WebSocket
        message in bytes; None turns WebSockets off. `drain` runs after the signal, while
        connections are still accepted; then answers under way have `grace` seconds to end.
        """
        self.open = Connections(connections)

        def context(*_: object) -> Any:
            return tls

        async def cancellable(scope: Scope, receive: Receive, send: Send) -> None:
            # The end of the grace cancels what still runs, which is no fault to be logged.
            with contextlib.suppress(asyncio.CancelledError):
                await app(scope, receive, send)

        websocket = cast(Any, partial(WebSocketProtocol, self.open))
        super().__init__(
            uvicorn.Config(
                cast(Any, cancellable),
                http=cast(Any, partial(HttpProtocol, self.open)),
                ws="none" if max_message is None else websocket,
                ws_max_size=max_message or 1,
                ws_per_message_deflate=False,
                backlog=ACCEPTS,
                log_config=None,
                access_log=False,
                h11_max_incomplete_event_size=MAX_HEADER,
                server_header=False,
                timeout_graceful_shutdown=grace,
                ssl_context_factory=context if tls else None,
            )
        )
        self._socket, self._drain = listening, drain

    async def listen(self) -> None:
        """Serve until a signal comes, or `should_exit` is set."""
        await self.serve([self._socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, but let `BACKLOG` connections wait to be accepted."""
        await super().startup(sockets)
        # uvicorn's `backlog` is also how many asyncio accepts at a time, so that one is small.
        self._socket.listen(BACKLOG)

    async def main_loop(self) -> None:
        """Serve until a signal, then run the given `drain`; a second signal ends this at once."""
        await super().main_loop()
        if self._drain is not None:
            draining = asyncio.create_task(self._drain())
            while not draining.done() and not self.force_exit:
                await asyncio.sleep(TICK_SECONDS)
            draining.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does, then close the connections that are still open."""
        await super().shutdown(sockets)
        if self.server_state.tasks:
            # Most were cancelled, and say so to whoever waits.
            await asyncio.wait(set(self.server_state.tasks), timeout=LAST_WORDS_SECONDS)
        self.open.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down; the second signal forces the end."""
        # uvicorn's own handler would raise the signal again, and the process would end in failure.
        self.force_exit, self.should_exit = self.should_exit, True
