"""Who is connected, how far each has got, and who goes first when there is no room."""

import asyncio
import ipaddress
import logging
import time
from collections.abc import Callable
from enum import Enum

log = logging.getLogger("edgewise.listening")


class Stage(Enum):
    """How far a connection has got; all but the last may be asked to make room, in this order."""

    SILENT = "no whole request came in time"
    """It has not sent a request's header: nothing yet, or bit by bit, or a TLS handshake."""
    IDLE = "it was between two requests"
    """It has been answered, and may ask again."""
    READING = "what it began to send did not come in time"
    """A request's body, or a WebSocket's first message, is not there yet."""
    BUSY = "it was being answered"
    """A whole request, or an open WebSocket."""


WAITING = (Stage.SILENT, Stage.IDLE, Stage.READING)

SECONDS = {Stage.SILENT: 10.0, Stage.READING: 60.0}
"""How long a stage may last; for the others what serves them says."""

STALL_SECONDS = 30.0
"""How long a peer may leave unread what it was sent, once the buffers are full."""

CLOSE_SECONDS = 10.0
"""How long a peer may take to read the last of it."""


class Seat:
    """One connection's place. `stalled` and `closing` are since when, on the table's clock."""

    def __init__(self, peer: str, transport: asyncio.Transport, late: Callable[[], None]) -> None:
        """`late` is called when a stage has lasted too long."""
        self.peer, self.late = peer, late
        self.stage = Stage.SILENT
        self.since = 0.0
        self.stalled: float | None = None
        self.closing: float | None = None
        self.handshaking = False
        self._below, self._above = transport, transport

    def secured(self, transport: asyncio.Transport) -> None:
        """The TLS handshake is over; `transport` speaks it."""
        self._above, self.handshaking = transport, False

    @property
    def is_closing(self) -> bool:
        """Whether it is being closed from this side."""
        return self._above.is_closing() or self._below.is_closing()

    def cut(self) -> None:
        """End it at once, whatever the other side does."""
        self._below.abort()


class _Share:
    """The connections of one peer, or all: how many, and which may make room, oldest first."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0
        self._waiting: dict[Stage, dict[Seat, None]] = {stage: {} for stage in WAITING}

    @property
    def full(self) -> bool:
        return 0 < self.most <= self.count

    def add(self, seat: Seat) -> None:
        if seat.stage in self._waiting:
            self._waiting[seat.stage][seat] = None

    def drop(self, seat: Seat) -> None:
        if seat.stage in self._waiting:
            self._waiting[seat.stage].pop(seat, None)

    def oldest(self) -> Seat | None:
        """The one to go."""
        for stage in WAITING:
            for seat in self._waiting[stage]:
                return seat
        return None


class Seats:
    """All connections of a server. Every call is O(1) but `sweep`.

    When there is no room, the connection that has been silent longest makes it, so that no number
    of silent ones keeps out one that asks; only where all are busy the newcomer is sent away.
    """

    def __init__(
        self, most: int, per_peer: int = 0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`most` connections, `per_peer` of them from one address; 0: no limit."""
        self._all = _Share(most)
        self._per_peer = per_peer
        self._peers: dict[str, _Share] = {}
        self._seats: set[Seat] = set()
        self._clock = clock

    def __len__(self) -> int:
        return len(self._seats)

    def take(self, transport: asyncio.Transport, late: Callable[[], None]) -> Seat | None:
        """A place for a new connection; None where there is none and it must go."""
        seat = Seat(peer_of(transport), transport, late)
        share = self._peers.get(seat.peer) or _Share(self._per_peer)
        for limit in (share, self._all):
            if limit.full and not self._make_room(limit):
                log.warning("a connection was refused: all are busy", extra={"peer": seat.peer})
                return None
        # Making room may have ended the peer's last connection, and with it the share.
        self._peers[seat.peer] = share
        self._seats.add(seat)
        seat.since = self._clock()
        for kept in (share, self._all):
            kept.count += 1
            kept.add(seat)
        return seat

    def move(self, seat: Seat, stage: Stage) -> None:
        """Note how far a connection has got. Nothing where it is there already."""
        if stage is seat.stage or seat not in self._seats:
            return
        shares = (self._peers[seat.peer], self._all)
        for share in shares:
            share.drop(seat)
        seat.stage, seat.since = stage, self._clock()
        for share in shares:
            share.add(seat)

    def stall(self, seat: Seat, stalled: bool) -> None:
        """Note whether the peer leaves unread what it is sent."""
        seat.stalled = self._clock() if stalled else None

    def leave(self, seat: Seat) -> None:
        """Give the place back; later calls do nothing."""
        if seat not in self._seats:
            return
        self._seats.discard(seat)
        for share in (self._peers[seat.peer], self._all):
            share.drop(seat)
            share.count -= 1
        if not self._peers[seat.peer].count:
            del self._peers[seat.peer]

    def sweep(self) -> None:
        """End what has lasted too long."""
        now = self._clock()
        for seat in list(self._seats):
            if seat.closing is None and seat.is_closing:
                seat.closing = now
            if seat.closing is not None:
                if now - seat.closing > CLOSE_SECONDS:
                    self._end(seat, "it did not read to the end")
            elif seat.stalled is not None and now - seat.stalled > STALL_SECONDS:
                self._end(seat, "it does not read what it is sent")
            elif now - seat.since > SECONDS.get(seat.stage, now):
                _tell(seat, seat.stage.value)
                seat.late()

    def cut_unsecured(self) -> None:
        """End those in the middle of a TLS handshake, of which nobody else knows."""
        for seat in [seat for seat in self._seats if seat.handshaking]:
            seat.cut()

    def _make_room(self, share: _Share) -> bool:
        seat = share.oldest()
        if seat is None:
            return False
        self._end(seat, "another needed its place")
        return True

    def _end(self, seat: Seat, why: str) -> None:
        _tell(seat, why)
        self.leave(seat)
        seat.cut()


def _tell(seat: Seat, why: str) -> None:
    log.info("a connection was closed: %s", why, extra={"peer": seat.peer})


def peer_of(transport: asyncio.Transport) -> str:
    """Whose connection it is: an IPv4 address, or the 64 bits of IPv6 that one subscriber has."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple) or not name:
        return "?"
    try:
        address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    except ValueError:
        return str(name[0])
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
