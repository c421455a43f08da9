"""A listening process: uvicorn with our limits, and a graceful end."""

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
"""Seconds that answers under way have to end after a signal."""

LAST_WORDS_SECONDS = 2.0
"""Seconds that an answer which was cut has to say so."""

TICK_SECONDS = 0.1
"""How often a drain checks for a second signal, as uvicorn does for the first."""


class Listener(uvicorn.Server):
    """Ends by SIGTERM or SIGINT with exit code 0. A second signal does not wait."""

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
        """Accepts at most `connections`. WebSockets need `max_message`, bytes.

        `drain` runs after the signal, while connections are still accepted; answers under way then
        have `grace` seconds.
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
        """Serve until a signal, or `should_exit`."""
        await self.serve([self._socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's `startup`, with a longer queue than what asyncio accepts at a time."""
        await super().startup(sockets)
        self._socket.listen(BACKLOG)

    async def main_loop(self) -> None:
        """uvicorn's `main_loop` until the first signal; then drains, until done or a second."""
        await super().main_loop()
        if self._drain is not None:
            draining = asyncio.create_task(self._drain())
            while not draining.done() and not self.force_exit:
                await asyncio.sleep(TICK_SECONDS)
            draining.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's `shutdown`; whoever is still connected at its end is cut."""
        await super().shutdown(sockets)
        if self.server_state.tasks:
            # They were cancelled, and say so to whoever waits.
            await asyncio.wait(set(self.server_state.tasks), timeout=LAST_WORDS_SECONDS)
        self.open.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the end. uvicorn's own would raise the signal again: an exit code of failure."""
        self.force_exit, self.should_exit = self.should_exit, True
