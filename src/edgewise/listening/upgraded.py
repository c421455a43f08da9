"""uvicorn's WebSockets, in the seats of the connections that they began as."""

import asyncio
from asyncio.transports import BaseTransport
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from edgewise.listening.config import ListenConfig
from edgewise.listening.http import HttpProtocol
from edgewise.listening.requests import Requests
from edgewise.listening.seats import Seat, Stage


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
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # It is HTTP, but no upgrade as RFC 6455 has it; uvicorn would leave it unanswered.
            self.handshake_complete = self.close_sent = True
            self.transport.write(_REFUSAL)
            self.transport.close()

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
