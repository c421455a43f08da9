"""uvicorn's HTTP/1.1, with a seat for each connection, limits on requests, and an end to waiting.

TLS is begun here and not by asyncio's server, which would tell of a connection only once its
handshake is over: those that never end theirs must be counted as well.
"""

import asyncio
import ssl
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from edgewise.listening.config import ListenConfig
from edgewise.listening.requests import Requests
from edgewise.listening.seats import SECONDS, Seat, Stage


class HttpProtocol(H11Protocol):
    """One connection, until it closes or becomes a WebSocket."""

    def __init__(
        self,
        config: ListenConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn: Requests = Requests()
        self.seat: Seat | None = None
        door = config.door
        self._seats = door.seats
        self._tls = door.certificate.context if door.certificate else None
        self._handshake: asyncio.Task[None] | None = None
        self._made = False
        self._early = bytearray()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a seat, and begin TLS where that is spoken."""
        self.seat = self._seats.take(transport, self._late)
        if self.seat is None:
            transport.abort()
        elif self._tls is None:
            self._made = True
            super().connection_made(transport)
        else:
            # Nothing of the handshake must be read before it has begun.
            transport.pause_reading()
            self.seat.handshaking = True
            self._handshake = self.loop.create_task(self._secure(transport, self._tls))

    async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            secured = await self.loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=SECONDS[Stage.SILENT],
            )
        except OSError:
            # No handshake, or an end in the middle of it: there is nobody to tell.
            return
        if self.seat is None or secured is None:
            return
        self.seat.secured(secured)
        self._made = True
        super().connection_made(secured)
        if self._early:
            self.data_received(bytes(self._early))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the seat back."""
        if self.seat is not None:
            self._seats.leave(self.seat)
            self.seat = None
        if self._made:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Data may come with the last of a handshake, before `_secure` has gone on."""
        if not self._made:
            self._early += data
            return
        super().data_received(data)
        self._note()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """As uvicorn's, which loses what came in one piece with the request."""
        super().handle_websocket_upgrade(event)
        protocol, rest = self.transport.get_protocol(), self.conn.trailing_data[0]
        if rest and isinstance(protocol, asyncio.Protocol) and not self.transport.is_closing():
            protocol.data_received(rest)

    def on_response_complete(self) -> None:
        """The connection may be asked to make room again."""
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        """The peer does not read."""
        super().pause_writing()
        self._stall(True)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._stall(False)

    def send_400_response(self, msg: str) -> None:
        """With the status that fits what was wrong; the connection ends."""
        self._refuse(self.conn.status, self.conn.reason)

    def _stall(self, stalled: bool) -> None:
        if self.seat is not None:
            self._seats.stall(self.seat, stalled)

    def _note(self) -> None:
        """Tell the table how far this connection has got."""
        if self.seat is None or self.transport.get_protocol() is not self:
            return
        if self.conn.their_state is h11.SEND_BODY:
            stage = Stage.READING
        elif self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            stage = Stage.BUSY
        elif not self.cycle or self.conn.trailing_data[0]:
            stage = Stage.SILENT
        else:
            stage = Stage.IDLE
        self._seats.move(self.seat, stage)

    def _late(self) -> None:
        """The stage has lasted too long."""
        begun = self._made and (self.seat and self.seat.stage is Stage.READING)
        if begun or (self._made and self.conn.trailing_data[0]):
            self._refuse(408, "The request did not come in time.")
        elif self.seat is not None:
            self.seat.cut()

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(self.conn.refusal(status, message))
        # Else an answer is under way, and there is no room for another.
        if self.cycle and not self.cycle.response_complete:
            # Whoever answers is told that the client is gone, and what it still says is dropped.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
