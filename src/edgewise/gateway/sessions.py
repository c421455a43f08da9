"""Sessions of a gateway: each device's token ids, which it can send again, in bounded memory."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence

from edgewise.wire.protocol import Ledger


class Session:
    """The token ids of one device's conversation, in `ledger`.

    `name` is secret: who knows it and has the API key named `key` can resume the session. An engine
    that takes a `salt` keeps the session's prefix cache apart by it. Consults and prefetches hold
    the lock `turn`, to run one by one. `left` is when the device left, or the session began
    (monotonic).
    """

    def __init__(self, key: str) -> None:
        self.name = secrets.token_urlsafe(16)
        self.key = key
        self.salt = secrets.token_hex(16)
        self.ledger = Ledger()
        self.turn = asyncio.Lock()
        self.left = time.monotonic()


class Sessions:
    """All sessions of a gateway: at most `most`, with at most `most_ids` token ids together.

    A session whose device has disconnected is kept for `idle` seconds. To make room, disconnected
    sessions are dropped first: those of the key that needs room, then those of other keys, the
    oldest first. Then connected sessions lose their ids, the least recently used first; their
    devices send the ids again. `ids` is the number of ids held now.
    """

    def __init__(self, *, most: int, most_ids: int, idle: float) -> None:
        self._most, self._most_ids, self._idle = most, most_ids, idle
        self.ids = 0
        self._attached: dict[str, Session] = {}
        # In the order in which their devices left.
        self._left: dict[str, Session] = {}
        # Attached ones with ids, in the order of their last use.
        self._holding = OrderedDict[str, Session]()

    def __len__(self) -> int:
        return len(self._left) + len(self._attached)

    def all(self) -> list[Session]:
        """Return all sessions, those of disconnected devices first."""
        return [*self._left.values(), *self._attached.values()]

    def attached(self, key: str) -> int:
        """Return how many sessions of the API key named `key` have a connected device."""
        return sum(session.key == key for session in self._attached.values())

    def open(self, name: str, key: str) -> Session | None:
        """Resume the disconnected session `name` if its key is named `key`; else begin a new one.

        Returns None if there is no room. Call `leave` or `forget` once the device is gone.
        """
        session = self._left.get(name)
        if session is not None and session.key == key and not self._is_idle(session):
            del self._left[name]
        elif len(self) < self._most or self._drop_one(key):
            session = Session(key)
        else:
            return None
        self._attached[session.name] = session
        if len(session.ledger):
            self._holding[session.name] = session
        return session

    def put(
        self, session: Session, position: int, ids: Sequence[int] | Ledger, check: int
    ) -> Ledger | None:
        """Replace the session's ids from index `position` on by `ids`; return its whole `Ledger`.

        Other sessions may be dropped or emptied to stay within `most_ids`. Returns None if ids
        before `position` are missing, or if `check`, the device's checksum of all ids, is not the
        ledger's. Then this session's ids are dropped; the device must send them from 0.
        """
        ledger, before = session.ledger, len(session.ledger)
        held = ledger.put(position, ids) and ledger.checksum == check
        self.ids += len(ledger) - before
        if not held:
            self._empty(session)
            return None
        self._holding[session.name] = session
        self._holding.move_to_end(session.name)
        while self.ids > self._most_ids:
            if not self._drop_one(session.key):
                self._empty(next(iter(self._holding.values())))
        return ledger

    def leave(self, session: Session) -> None:
        """Keep the session for `idle` seconds: its device has disconnected, and may come back."""
        if self._attached.pop(session.name, None) is not None:
            self._holding.pop(session.name, None)
            session.left = time.monotonic()
            self._left[session.name] = session

    def forget(self, session: Session) -> None:
        """Drop the session at once: its device will not come back."""
        self.leave(session)
        self._drop(session)

    def expire(self) -> None:
        """Drop the sessions whose devices disconnected more than `idle` seconds ago."""
        while (first := next(iter(self._left.values()), None)) and self._is_idle(first):
            self._drop(first)

    def _is_idle(self, session: Session) -> bool:
        return time.monotonic() - session.left > self._idle

    def _drop_one(self, key: str) -> bool:
        """Drop the session left longest, of this key if possible; return False if none is left."""
        # Its own first, or a key with many sessions would cost others theirs.
        left = self._left.values()
        oldest = next((one for one in left if one.key == key), next(iter(left), None))
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _empty(self, session: Session) -> None:
        """Drop a session's ids, but keep the session."""
        self.ids -= len(session.ledger)
        session.ledger = Ledger()
        self._holding.pop(session.name, None)

    def _drop(self, session: Session) -> None:
        """Drop a session whose device is disconnected."""
        if self._left.pop(session.name, None) is not None:
            self._empty(session)
