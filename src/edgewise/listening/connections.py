"""Connections of a listener: how many there may be, and how long each may take.

uvicorn has no deadline for receiving a request. Here a connection has one until the request is
whole, and loses its place if it is waited for when another one needs it: silent or slow peers
keep nobody out.
"""

import asyncio
import logging
import re
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

HEAD_SECONDS = 10.0
"""How long a request's line and headers may take, or the first message of a WebSocket."""

BODY_SECONDS = 30.0
"""How long the whole body may take."""

STALL_SECONDS = 30.0
"""How long a peer may leave unread what it was sent, once the buffers are full."""

MAX_HEADER = 16 << 10
"""A request's first line and headers together, bytes."""

# A line that ends without CR, or goes on in the next one. A proxy in front that reads such a head
# otherwise sees other requests than this server does.
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\r\n[ \t]")

log = logging.getLogger("edgewise.listening")


class Connections:
    """The open connections of a listener, at most `most`. Every call is O(1)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[asyncio.Transport] = set()
        # In the order in which they began to be waited for.
        self._waiting: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self._stalled: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, transport: asyncio.Transport) -> None:
        """Make room: the connection that is waited for longest goes, else the new one."""
        if len(self._open) >= self._most:
            oldest = next(iter(self._waiting), transport)
            self._cut(oldest, "another needed its place" if self._waiting else "all are busy")
            if oldest is transport:
                return
        self._open.add(transport)
        self.wait(transport, HEAD_SECONDS)

    def wait(self, transport: asyncio.Transport, seconds: float) -> None:
        """Give the peer that long for what it still has to send."""
        if transport in self._open:
            self.received(transport)
            self._waiting[transport] = _later(seconds, self._cut, transport, "it took too long")

    def is_waiting(self, transport: asyncio.Transport) -> bool:
        """Whether it has such a deadline."""
        return transport in self._waiting

    def received(self, transport: asyncio.Transport) -> None:
        """The peer sent what was waited for."""
        if timer := self._waiting.pop(transport, None):
            timer.cancel()

    def stall(self, transport: asyncio.Transport, stalled: bool) -> None:
        """Note whether the peer leaves unread what it is sent."""
        if timer := self._stalled.pop(transport, None):
            timer.cancel()
        if stalled and transport in self._open:
            timer = _later(STALL_SECONDS, self._cut, transport, "it does not read")
            self._stalled[transport] = timer

    def remove(self, transport: asyncio.Transport) -> None:
        """It is closed."""
        self._open.discard(transport)
        self.received(transport)
        self.stall(transport, False)

    def _cut(self, transport: asyncio.Transport, why: str) -> None:
        peer = transport.get_extra_info("peername")
        log.info("a connection was closed: %s", why, extra={"peer": peer[0] if peer else "?"})
        self.remove(transport)
        transport.abort()


def _later(seconds: float, call: Any, *arguments: Any) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, call, *arguments)


class StrictRequests(h11.Connection):
    """Refuses what a proxy in front of this server may read as other requests.

    That is bare LF, folded headers, a length beside chunks, chunks in HTTP/1.0, and trailers. h11
    is lenient there.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEADER)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Raises `RemoteProtocolError`."""
        if self.their_state is h11.IDLE:
            head = self.trailing_data[0].partition(b"\r\n\r\n")[0]
            if _AMBIGUOUS.search(head):
                raise h11.RemoteProtocolError("bare LF or folded header")
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            old = event.http_version != b"1.1"
            if b"transfer-encoding" in names and (old or b"content-length" in names):
                raise h11.RemoteProtocolError("ambiguous length")
            if old and event.http_version != b"1.0":
                raise h11.RemoteProtocolError("unknown version")
        elif isinstance(event, h11.EndOfMessage) and event.headers:
            raise h11.RemoteProtocolError("trailers")
        return event


class HttpProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, among `connections`."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.conn = StrictRequests()
        self._connections = connections
        self._body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place."""
        super().connection_made(transport)
        self._connections.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._connections.remove(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Set the deadline for the rest of a request, or end it."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            # A WebSocket now. It has to speak within the deadline that runs already.
            return
        body, waiting = self.conn.their_state is h11.SEND_BODY, self.conn.their_state is h11.IDLE
        if body and not self._body:
            self._connections.wait(self.transport, BODY_SECONDS)
        elif waiting and not self._connections.is_waiting(self.transport):
            self._connections.wait(self.transport, HEAD_SECONDS)
        elif not (body or waiting):
            self._connections.received(self.transport)
        self._body = body

    def send_400_response(self, msg: str) -> None:
        """If an answer is under way there is no room for another one: hang up."""
        busy = self.cycle and not self.cycle.response_complete
        if busy or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        """The peer does not read."""
        super().pause_writing()
        self._connections.stall(self.transport, True)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._connections.stall(self.transport, False)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, among `connections`."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._connections = connections
        self._asked = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._connections.remove(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """uvicorn hands over the request first. What follows is the device's."""
        if self._asked:
            self._connections.received(self.transport)
        self._asked = True
        super().data_received(data)

    def pause_writing(self) -> None:
        """Do not read either: pings are answered at once, and the answers would pile up."""
        super().pause_writing()
        self.transport.pause_reading()
        self._connections.stall(self.transport, True)

    def resume_writing(self) -> None:
        """The peer reads again."""
        super().resume_writing()
        self._connections.stall(self.transport, False)
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()
