"""Limits on a server's connections: how many may be open, and how long each may take.

uvicorn has no deadline for receiving a request. Here each connection has one until its request is
complete; until then it is also the first to be closed if a new connection needs its place. So
silent or slow peers keep nobody out.
"""

import asyncio
import logging
import time
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

WAIT_SECONDS = 30.0
"""Seconds in which a peer must send a whole request or a WebSocket's first message, and in which
it must read what it was sent."""

MAX_HEADER = 16 << 10
"""Most bytes of a request's first line and headers."""

PROBE_SECONDS = 2.0
"""Seconds after which a peer that has closed its sending side is probed: does it still wait for
the answer? The second probe follows after as long; then the interval doubles each time."""

LEAST_RATE = 8 << 10
"""Bytes a second that a peer must read; it is cut once it is `WAIT_SECONDS` behind this rate."""

# Fewest bytes that asyncio sends between its calls of `pause_writing` and `resume_writing`.
_BETWEEN = 48 << 10

log = logging.getLogger("edgewise.listening")

Awaited = Literal["no whole request came", "it does not read"]
"""Reasons to close a connection whose peer does nothing, as they are logged."""


class Connections:
    """The open connections of a server, at most `most`, with their deadlines."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[asyncio.Transport] = set()
        # In the order in which the waits began.
        self._waits: dict[tuple[asyncio.Transport, Awaited], asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, transport: asyncio.Transport) -> None:
        """Add a new connection, with a deadline for its first request.

        If all places are taken, the connection that has kept the server waiting longest is closed;
        if none keeps it waiting, the new one is closed instead.
        """
        if len(self._open) >= self._most:
            oldest, _ = next(iter(self._waits), (transport, ""))
            self.cut(oldest, "all places are taken")
            if oldest is transport:
                return
        self._open.add(transport)
        self.wait(transport, "no whole request came")

    def wait(self, transport: asyncio.Transport, awaited: Awaited) -> None:
        """Close the connection after `WAIT_SECONDS`, unless `done` is called before.

        `awaited` says what the peer fails to do; call `done` with the same value.
        """
        if transport in self._open and (transport, awaited) not in self._waits:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(WAIT_SECONDS, self.cut, transport, awaited)
            self._waits[transport, awaited] = timer

    def done(self, transport: asyncio.Transport, awaited: Awaited) -> None:
        """End the deadline that `wait` began: the peer did what was awaited."""
        if timer := self._waits.pop((transport, awaited), None):
            timer.cancel()

    def remove(self, transport: asyncio.Transport) -> None:
        """Forget a connection that is closed, with its deadlines."""
        self._open.discard(transport)
        self.done(transport, "no whole request came")
        self.done(transport, "it does not read")

    def close(self) -> None:
        """Close all connections at once."""
        for transport in list(self._open):
            self.cut(transport, "the server has ended")

    def cut(self, transport: asyncio.Transport, why: str) -> None:
        """Close a connection at once, without sending what is buffered, and log `why`."""
        peer = transport.get_extra_info("peername")
        log.info("a connection was closed: %s", why, extra={"peer": peer[0] if peer else "?"})
        self.remove(transport)
        transport.abort()


class _Counted(asyncio.Protocol):
    """Mix-in for uvicorn's protocols: cuts slow readers, reports a closed one to `connections`."""

    transport: asyncio.Transport

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._connections = connections
        self._paused = self._behind = 0.0

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused = time.monotonic()
        self._connections.wait(self.transport, "it does not read")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connections.done(self.transport, "it does not read")
        late = time.monotonic() - self._paused - _BETWEEN / LEAST_RATE
        self._behind = max(0.0, self._behind + late)
        if self._behind > WAIT_SECONDS:
            self._connections.cut(self.transport, "it reads too slowly")


class HttpProtocol(_Counted, H11Protocol):  # type: ignore[misc]
    """uvicorn's HTTP/1.1 with the limits of `Connections`; half-closed peers get their answer."""

    _ended = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connections.add(transport)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            # A WebSocket now: its first message has to come before the deadline that runs already.
            return
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._connections.wait(self.transport, "no whole request came")
        else:
            self._connections.done(self.transport, "no whole request came")

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Handle a peer's closing of its sending side; return whether to keep the connection.

        It is kept while a complete request is being answered (HTTP/1.0: once the answer has begun);
        with TLS never.
        """
        whole = self._answering and self.conn.their_state is not h11.SEND_BODY
        # Proxies that speak HTTP/1.0 close like this if their client has left.
        begun = whole and (self.cycle.response_started or self.scope["http_version"] != "1.0")
        self._ended = begun and self.scheme == "http"  # TLS has no such end
        if self._ended:
            # It may have left altogether.
            self.loop.call_later(PROBE_SECONDS, self._probe, PROBE_SECONDS)
        return self._ended

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._ended and not self._answering:
            self.transport.close()

    @property
    def _answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _probe(self, seconds: float) -> None:
        """Send an interim response, which clients skip; the second fails if the peer has left."""
        if self.transport.is_closing() or not self._answering or self.cycle.response_started:
            return
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(seconds, self._probe, 2 * seconds)

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request with 400; if an answer is under way already, disconnect."""
        busy = self.cycle and not self.cycle.response_complete
        if busy or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
        else:
            super().send_400_response(msg)


class WebSocketProtocol(_Counted, WebSocketsSansIOProtocol):  # type: ignore[misc]
    """uvicorn's WebSocket protocol with the limits of `Connections`."""

    _upgraded = False

    def data_received(self, data: bytes) -> None:
        """Handle received bytes: first the upgrade request, then the peer's messages."""
        if self._upgraded:
            self._connections.done(self.transport, "no whole request came")
        self._upgraded = True
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.transport.is_closing():
            # websockets refused headers that are too large; uvicorn does not send what it says.
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read what it is sent."""
        super().pause_writing()
        # Answers to the peer's pings would pile up.
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Cut the connection if the application ends while the peer does not read."""
        super().on_task_complete(task)
        if not self.writable.is_set():
            self._connections.cut(self.transport, "it does not read")
