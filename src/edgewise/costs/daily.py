"""The daily budget: a file of what all processes of a user have spent, by day and currency."""

import logging
import os
import sqlite3
import threading
import time
import weakref
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from pathlib import Path

from edgewise.cloud.record import require_own
from edgewise.errors import UsageError

_TABLE = (
    "CREATE TABLE IF NOT EXISTS spent "
    "(day TEXT, currency TEXT, amount TEXT, PRIMARY KEY (day, currency))"
)
_SET = "INSERT OR REPLACE INTO spent VALUES (?, ?, ?)"
_GET = "SELECT amount FROM spent WHERE day = ? AND currency = ?"

# Guards all files: none may be created or closed while another thread has SQLite's locks on it.
_LOCK = threading.Lock()

# How long to wait for other processes' locks on the file.
_SECONDS = 10.0

_log = logging.getLogger(__name__)


def today() -> str:
    """Return the date in UTC, as YYYY-MM-DD, so that it does not depend on the time zone."""
    return time.strftime("%Y-%m-%d", time.gmtime())


class DailyTotal:
    """Costs summed by day and currency in a SQLite file, which processes and threads may share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._warned = False
        self._db: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None

    def require_usable(self) -> None:
        """Raise `UsageError` if the file cannot be created, read or written."""
        try:
            self._add(today(), "", Decimal(0), None)
        except (sqlite3.Error, OSError, InvalidOperation) as error:
            raise UsageError(
                f"The daily budget file {str(self.path)!r} cannot be used ({error}), so "
                "max-cost-day cannot be enforced",
                hint="repair or delete it, or remove the limit",
                setting="max_cost_day",
            ) from error

    def add(self, day: str, currency: str, cost: Decimal, most: Decimal | None = None) -> bool:
        """Add `cost` to a day's sum unless that then exceeds `most`; return whether it was added.

        With `most` None, or `cost` up to 0, always. False, logged once, if the file cannot be used.
        """
        try:
            return self._add(day, currency, cost, most)
        except (sqlite3.Error, OSError, InvalidOperation) as error:
            if not self._warned:
                _log.warning("costs cannot be stored in %r: %s", str(self.path), error)
            self._warned = True
            return False

    def _add(self, day: str, currency: str, cost: Decimal, most: Decimal | None) -> bool:
        with _LOCK:
            db = self._connected()
            try:
                # Nobody else reads a sum that is about to change.
                db.execute("BEGIN IMMEDIATE")
                row = db.execute(_GET, (day, currency)).fetchone()
                # Less than nothing would be credit.
                found = max(Decimal(str(row[0])) if row else Decimal(0), Decimal(0))
                if not found.is_finite():
                    raise InvalidOperation(f"{found} is not a sum")
                if most is not None and cost > 0 and found + cost > most:
                    return False
                db.execute(_SET, (day, currency, str(max(found + cost, Decimal(0)))))
                db.execute("COMMIT")
                return True
            finally:
                if db.in_transaction:
                    db.rollback()

    def _connected(self) -> sqlite3.Connection:
        """Return the open connection, or a new one if the file was replaced."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # By POSIX a process that closes a file loses all its locks on it, those of other threads
        # too. So one that exists is only ever opened by SQLite.
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        about = self.path.lstat()
        require_own(about)
        inode = about.st_dev, about.st_ino
        if self._db is None or self._inode != inode:
            self.path.chmod(0o600)
            if self._db is not None:
                self._db.close()
            db = sqlite3.connect(self.path, _SECONDS, isolation_level=None, check_same_thread=False)
            weakref.finalize(self, db.close)
            self._db, self._inode = db, inode
        self._db.execute(_TABLE)
        return self._db
