"""Sessions of a gateway: ids that the device can rebuild, in bounded memory, gone when idle."""

import asyncio
import secrets
import time
from collections import OrderedDict

from edgewise.gateway.protocol import Ledger


class Session:
    """The ids of one device's conversation; consults go one after the other."""

    def __init__(self, key: str) -> None:
        self.name = secrets.token_urlsafe(16)
        self.key = key
        self.salt = secrets.token_hex(16)
        self.ledger = Ledger()
        self.turn = asyncio.Lock()
        self.attached = True
        self.left = time.monotonic()


class Sessions:
    """At most `most` sessions holding at most `most_ids` ids between them.

    A session whose device has left is kept for `idle` seconds, so that it can come back; where
    room is short, those that left first go first.
    """

    def __init__(self, *, most: int, most_ids: int, idle: float) -> None:
        self._most, self._most_ids, self._idle = most, most_ids, idle
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def ids(self) -> int:
        """Ids held by all sessions."""
        return sum(len(session.ledger.ids) for session in self._sessions.values())

    def all(self) -> list[Session]:
        """Every session held."""
        return list(self._sessions.values())

    def attached(self, key: str | None = None) -> int:
        """Sessions whose device is here, of a key or of all."""
        return sum(s.attached and key in (None, s.key) for s in self._sessions.values())

    def open(self, name: str, key: str) -> Session | None:
        """The session `name` of this very key, or a new one; None where there is no room."""
        self.expire()
        session = self._sessions.get(name)
        if session is not None and session.key == key and not session.attached:
            session.attached = True
            self._sessions.move_to_end(name)
            return session
        if not self._make_room():
            return None
        fresh = Session(key)
        self._sessions[fresh.name] = fresh
        return fresh

    def leave(self, session: Session) -> None:
        """The device is gone, perhaps to come back."""
        session.attached = False
        session.left = time.monotonic()
        if session.name in self._sessions:
            self._sessions.move_to_end(session.name)

    def forget(self, session: Session) -> None:
        """The device will not come back."""
        session.attached = False
        self._sessions.pop(session.name, None)

    def expire(self) -> None:
        """Drop what has been left for long, and more where ids take too much room."""
        now = time.monotonic()
        ids = self.ids
        for session in list(self._sessions.values()):
            if session.attached:
                continue
            if now - session.left > self._idle or ids > self._most_ids:
                ids -= len(session.ledger.ids)
                del self._sessions[session.name]

    def _make_room(self) -> bool:
        if len(self._sessions) < self._most:
            return True
        for session in self._sessions.values():
            if not session.attached:
                del self._sessions[session.name]
                return True
        return False
