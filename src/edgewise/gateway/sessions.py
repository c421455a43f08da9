"""Sessions of a gateway: ids that the device can rebuild, in bounded memory, gone when idle."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence

from edgewise.wire.protocol import Ledger


class Session:
    """The ids of one device's conversation; consults go one after the other.

    `counted` of its ids are in the sums of `Sessions`.
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
    """Sessions of a key, or of all, by name: those that were left, in the order in which they were;
    those whose device is here; and those of these that hold ids, in the order of their last use.
    """

    def __init__(self) -> None:
        self.left, self.attached = dict[str, Session](), dict[str, Session]()
        self.holding = OrderedDict[str, Session]()
        self.ids = 0


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

    def __len__(self) -> int:
        return len(self._all.left) + len(self._all.attached)

    @property
    def ids(self) -> int:
        """Ids held by all sessions."""
        return self._all.ids

    def all(self) -> list[Session]:
        """Every session held."""
        return [*self._all.left.values(), *self._all.attached.values()]

    def attached(self, key: str) -> int:
        """Sessions of a key whose device is here."""
        return len(self._shares[key].attached) if key in self._shares else 0

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
        for share in self._shares_of(session):
            share.left.pop(session.name, None)
            share.attached[session.name] = session
            if session.counted:
                share.holding[session.name] = session
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
        own, everybody = self._shares_of(session)
        for share in (own, everybody):
            share.ids += len(copied) - session.counted
            share.holding[session.name] = session
            share.holding.move_to_end(session.name)
        session.counted = len(copied)
        self._make_room(own, most or self._most_ids)
        self._make_room(everybody, self._most_ids)
        return copied

    def leave(self, session: Session) -> None:
        """The device is gone, perhaps to come back."""
        if session.name in self._all.attached:
            session.left = time.monotonic()
            for share in self._shares_of(session):
                del share.attached[session.name]
                share.holding.pop(session.name, None)
                share.left[session.name] = session

    def forget(self, session: Session) -> None:
        """The device will not come back."""
        self.leave(session)
        self._drop(session)

    def expire(self) -> None:
        """Drop what has been left for long."""
        while (first := next(iter(self._all.left.values()), None)) and self._is_idle(first):
            self._drop(first)

    def _shares_of(self, session: Session) -> tuple[_Share, _Share]:
        """That of its key, and that of all."""
        return self._shares.setdefault(session.key, _Share()), self._all

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
        while share.ids > most:
            victim = next(iter((share.left or share.holding).values()))
            if victim.name in share.attached:
                self._empty(victim)
            else:
                self._drop(victim)

    def _empty(self, session: Session) -> None:
        """It stays, without its ids."""
        session.ledger = Ledger()
        for share in self._shares_of(session):
            share.ids -= session.counted
            share.holding.pop(session.name, None)
        session.counted = 0

    def _drop(self, session: Session) -> None:
        """A session whose device is not here."""
        if session.name not in self._all.left:
            return
        self._empty(session)
        for share in self._shares_of(session):
            del share.left[session.name]
        share = self._shares[session.key]
        if not share.left and not share.attached:
            del self._shares[session.key]
