"""Sessions of a gateway: ids that the device can rebuild, in bounded memory, gone when idle."""

import asyncio
import secrets
import time
from collections import Counter, OrderedDict

from edgewise.wire.protocol import Ledger


class Session:
    """The ids of one device's conversation; consults go one after the other."""

    def __init__(self, key: str) -> None:
        self.name = secrets.token_urlsafe(16)
        self.key = key
        self.salt = secrets.token_hex(16)
        self.ledger = Ledger()
        self.turn = asyncio.Lock()
        self.left = time.monotonic()


class Sessions:
    """At most `most` sessions holding at most `most_ids` ids between them.

    A session whose device has left is kept for `idle` seconds, so that it can come back; where
    room is short, those that left first go first.
    """

    def __init__(self, *, most: int, most_ids: int, idle: float) -> None:
        self._most, self._most_ids, self._idle = most, most_ids, idle
        # Those that were left stand before those that were left later.
        self._left: OrderedDict[str, Session] = OrderedDict()
        self._attached: dict[str, Session] = {}
        self._by_key: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._left) + len(self._attached)

    @property
    def ids(self) -> int:
        """Ids held by all sessions."""
        return sum(len(session.ledger.ids) for session in self.all())

    def all(self) -> list[Session]:
        """Every session held."""
        return [*self._left.values(), *self._attached.values()]

    def attached(self, key: str) -> int:
        """Sessions of a key whose device is here."""
        return self._by_key[key]

    def open(self, name: str, key: str) -> Session | None:
        """The session `name` of this very key, or a new one; None where there is no room."""
        session = self._left.get(name)
        now = time.monotonic()
        if session is None or session.key != key or now - session.left > self._idle:
            if len(self) >= self._most:
                if not self._left:
                    return None
                self._left.popitem(last=False)
            session = Session(key)
        self._left.pop(session.name, None)
        self._attached[session.name] = session
        self._by_key[key] += 1
        return session

    def leave(self, session: Session) -> None:
        """The device is gone, perhaps to come back."""
        if self._detach(session):
            session.left = time.monotonic()
            self._left[session.name] = session

    def forget(self, session: Session) -> None:
        """The device will not come back."""
        self._detach(session)
        self._left.pop(session.name, None)

    def expire(self) -> None:
        """Drop what has been left for long, and more where ids take too much room."""
        now = time.monotonic()
        ids = self.ids
        for session in list(self._left.values()):
            if now - session.left <= self._idle and ids <= self._most_ids:
                return
            ids -= len(session.ledger.ids)
            del self._left[session.name]

    def _detach(self, session: Session) -> bool:
        if self._attached.pop(session.name, None) is None:
            return False
        self._by_key[session.key] -= 1
        return True
