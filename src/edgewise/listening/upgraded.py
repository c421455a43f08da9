"""uvicorn's WebSockets, in the seats of the connections that they began as."""

import asyncio
import logging
from asyncio.transports import BaseTransport
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from edgewise.listening.config import ListenConfig
from edgewise.listening.http import HttpProtocol
from edgewise.listening.requests import Requests
from edgewise.listening.seats import Seat, Stage

PIECE = 4096
"""Bytes that are taken apart at a time: a read may hold tens of thousands of frames."""

EMPTY_BURST, EMPTY_PER_SECOND = 100, 10.0
"""Frames that bring nothing: pings, pongs, short pieces of a message. Devices ping rarely."""

SHORT = 512
"""Bytes; who sends a message in pieces sends longer ones."""

QUEUED = 2000
"""Messages that may come in one read."""

log = logging.getLogger("edgewise.listening")


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket."""

    def __init__(
        self,
        config: ListenConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._seats = config.door.seats
        self._seat: Seat | None = None
        self._empty, self._counted = 0.0, self.loop.time()

    def connection_made(self, transport: BaseTransport) -> None:
        """Take over the seat of the request that asked for this."""
        super().connection_made(transport)
        before = self.transport.get_protocol()
        assert isinstance(before, HttpProtocol)
        self._seat, before.seat = before.seat, None
        if self._seat is not None:
            self._seat.late = self._seat.cut
            self._seats.move(self._seat, Stage.READING)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the seat back."""
        if self._seat is not None:
            self._seats.leave(self._seat)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The request itself comes first; what follows is the device's."""
        if self._seat is not None and self.handshake_initiated:
            self._seats.move(self._seat, Stage.BUSY)
        for begin in range(0, len(data), PIECE):
            if self.transport.is_closing():
                return
            super().data_received(data[begin : begin + PIECE])
            if self.queue.qsize() > QUEUED:
                self._cut("it sent too many messages at once")
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # It is HTTP, but no upgrade as RFC 6455 has it; uvicorn would leave it unanswered.
            self.handshake_complete = self.close_sent = True
            self.transport.write(_REFUSAL)
            self.transport.close()

    def handle_ping(self) -> None:
        """Answer it, if there are not too many."""
        if self._may_be_empty():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Count it: nobody has to ask for a pong to be sent one."""
        if self._may_be_empty():
            super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        """A message of empty pieces never grows too long."""
        if event.fin or len(event.data) >= SHORT or self._may_be_empty():
            super().handle_cont(event)

    def _may_be_empty(self) -> bool:
        """Whether one more frame may bring nothing; else the connection is cut."""
        now = self.loop.time()
        gone = (now - self._counted) * EMPTY_PER_SECOND
        self._empty, self._counted = max(0.0, self._empty - gone) + 1, now
        if self._empty > EMPTY_BURST:
            self._cut("it sent too many frames that bring nothing")
        return not self.transport.is_closing()

    def _cut(self, why: str) -> None:
        if not self.transport.is_closing():
            peer = self._seat.peer if self._seat else "?"
            log.info("a connection was closed: %s", why, extra={"peer": peer})
            self.transport.abort()

    def pause_writing(self) -> None:
        """The peer does not read; nor is it read, since its pings are answered at once."""
        super().pause_writing()
        self.transport.pause_reading()
        if self._seat is not None:
            self._seats.stall(self._seat, True)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()
        if self._seat is not None:
            self._seats.stall(self._seat, False)

    def handle_parser_exception(self) -> None:
        """Hang up where it was no frame, even before the upgrade was answered."""
        if self.conn.close_sent is None:
            self.transport.abort()
        else:
            super().handle_parser_exception()


_REFUSAL = Requests().refusal(400, "This is no WebSocket upgrade.")
