"""A server's process: its sockets, its signals, and how it ends."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import uvicorn

from edgewise.listening.config import ListenConfig
from edgewise.listening.files import ACCEPTS
from edgewise.listening.http import HttpProtocol
from edgewise.listening.logs import flush_counts
from edgewise.listening.sockets import BACKLOG

SWEEP_SECONDS = 1.0
"""Between two looks at who has taken too long."""

log = logging.getLogger("edgewise.listening")

Drain = Callable[[], Coroutine[Any, Any, None]]


class Listener(uvicorn.Server):
    """uvicorn, ended by SIGTERM or SIGINT with exit code 0. A second signal does not wait."""

    config: ListenConfig

    def __init__(
        self,
        config: ListenConfig,
        *,
        beside: Sequence[ListenConfig] = (),
        drain: Drain | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        """`beside` are served at doors of their own, without a lifespan.

        `ready` is called once it answers and a signal ends it; `drain` runs after the signal, while
        connections are still taken.
        """
        for each in (config, *beside):
            each.http = HttpProtocol
        super().__init__(config)
        self._configs, self._drain, self._ready = (config, *beside), drain, ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Serve until a signal, or `should_exit`."""
        self._loop = asyncio.get_running_loop()
        async with self._sweeping():
            await self.serve([self.config.door.socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, and at the doors beside."""
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        for config in self._configs[1:]:
            made = await loop.create_server(
                lambda config=config: HttpProtocol(config, self.server_state, {}),
                sock=config.door.socket,
                backlog=ACCEPTS,
            )
            self.servers.append(made)
        for config in self._configs:
            # asyncio has made the queue as short as what it takes at one go.
            config.door.socket.listen(BACKLOG)
        if self.started and self._ready is not None:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, which does not know of those in a TLS handshake."""
        for config in self._configs:
            config.door.seats.cut_unsecured()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """As uvicorn's, which then raises them again: a graceful end would look like a kill."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the end."""
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
    async def _sweeping(self) -> AsyncGenerator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                try:
                    self._sweep()
                except Exception:
                    # The next one is swept all the same.
                    log.exception("a sweep failed")

        sweeping = asyncio.create_task(sweep())
        try:
            yield
        finally:
            sweeping.cancel()

    def _sweep(self) -> None:
        for config in self._configs:
            config.door.seats.sweep()
            if config.door.certificate is not None:
                config.door.certificate.refresh()
        flush_counts()
