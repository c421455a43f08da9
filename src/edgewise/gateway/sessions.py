"""Sessions of a gateway: ids that the device can rebuild, in bounded memory, gone when idle."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence

from edgewise.wire.protocol import Ledger

_InOrder = OrderedDict[str, "Session"]


class Session:
    """The ids of one device's conversation; consults go one after the other.

    `counted` of its ids are counted in the books of `Sessions`.
    """

    def __init__(self, key: str) -> None:
        self.name = secrets.token_urlsafe(16)
        self.key = key
        self.salt = secrets.token_hex(16)
        self.ledger = Ledger()
        self.counted = 0
        self.turn = asyncio.Lock()
        self.left = time.monotonic()


class _Share:
    """What a key, or all of them, hold. `left` sessions stand in the order in which they left,
    `holding` ones, which have ids and their device here, in that of their last use."""

    def __init__(self) -> None:
        self.left, self.holding = _InOrder(), _InOrder()
        self.attached = self.ids = 0

    @property
    def victim(self) -> Session | None:
        """The session that gives up its ids first."""
        waiting = self.left or self.holding
        return next(iter(waiting.values()), None)


class Sessions:
    """At most `most` sessions holding at most `most_ids` ids between them.

    A session whose device has disconnected is kept for `idle` seconds. To make room, the sessions
    that were left first are dropped first; then connected sessions lose their ids, the least
    recently used first, and their devices send them again. A key above its own limit makes room
    from its own sessions, in the same order.
    """

    def __init__(self, *, most: int, most_ids: int, idle: float) -> None:
        self._most, self._most_ids, self._idle = most, most_ids, idle
        self._all = _Share()
        self._shares: dict[str, _Share] = {}
        self._attached: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._all.left) + len(self._attached)

    @property
    def ids(self) -> int:
        """Ids held by all sessions."""
        return self._all.ids

    def all(self) -> list[Session]:
        """Every session held."""
        return [*self._all.left.values(), *self._attached.values()]

    def attached(self, key: str) -> int:
        """Sessions of a key whose device is here."""
        return self._shares[key].attached if key in self._shares else 0

    def held(self, key: str) -> int:
        """Ids held by all sessions of a key."""
        return self._shares[key].ids if key in self._shares else 0

    def open(self, name: str, key: str) -> Session | None:
        """The session `name` of this very key, or a new one; None where there is no room."""
        session = self._all.left.get(name)
        if session is None or session.key != key or self._is_idle(session):
            if len(self) >= self._most and not self._drop_one(key):
                return None
            session = Session(key)
        share = self._shares.setdefault(key, _Share())
        for place in (self._all, share):
            place.left.pop(session.name, None)
            place.attached += 1
            if len(session.ledger):
                place.holding[session.name] = session
        self._attached[session.name] = session
        return session

    def put(
        self, session: Session, position: int, ids: Sequence[int] | Ledger, check: int, *, most: int
    ) -> Ledger | None:
        """Take the ids of a frame; all that it means, None where that is not held.

        `session` is one whose device is here. All of its key's hold at most `most` ids afterwards
        (0: no limit of its own).
        """
        ledger = session.ledger
        if not ledger.put(position, ids) or ledger.check != check:
            self._empty(session)
            return None
        copied = ledger.copy()
        share = self._shares[session.key]
        for place in (self._all, share):
            place.ids += len(copied) - session.counted
            place.holding[session.name] = session
            place.holding.move_to_end(session.name)
        session.counted = len(copied)
        self._make_room(share, most or self._most_ids)
        self._make_room(self._all, self._most_ids)
        return copied

    def leave(self, session: Session) -> None:
        """The device is gone, perhaps to come back."""
        if self._attached.pop(session.name, None) is None:
            return
        session.left = time.monotonic()
        for place in (self._all, self._shares[session.key]):
            place.attached -= 1
            place.holding.pop(session.name, None)
            place.left[session.name] = session

    def forget(self, session: Session) -> None:
        """The device will not come back."""
        self.leave(session)
        self._drop(session)

    def expire(self) -> None:
        """Drop what has been left for long."""
        while (first := next(iter(self._all.left.values()), None)) and self._is_idle(first):
            self._drop(first)

    def _is_idle(self, session: Session) -> bool:
        return time.monotonic() - session.left > self._idle

    def _drop_one(self, key: str) -> bool:
        """Make room for one more session: a key that left one behind gives up its own."""
        own = self._shares[key].left if key in self._shares else None
        oldest = next(iter((own or self._all.left).values()), None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _make_room(self, share: _Share, most: int) -> None:
        while share.ids > most and (victim := share.victim):
            if victim.name in share.left:
                self._drop(victim)
            else:
                self._empty(victim)

    def _empty(self, session: Session) -> None:
        """It stays, without its ids."""
        session.ledger = Ledger()
        for place in (self._all, self._shares[session.key]):
            place.ids -= session.counted
            place.holding.pop(session.name, None)
        session.counted = 0

    def _drop(self, session: Session) -> None:
        """A session whose device is not here."""
        share = self._shares.get(session.key)
        if share is None or share.left.pop(session.name, None) is None:
            return
        del self._all.left[session.name]
        self._empty(session)
        if not share.left and not share.attached:
            del self._shares[session.key]
