"""The daily budget: what all processes of a user spent, by day and currency, in a file."""

import logging
import os
import sqlite3
import time
from contextlib import closing
from decimal import Decimal, InvalidOperation
from pathlib import Path

from edgewise.cloud.record import private_file
from edgewise.errors import UsageError

_TABLE = (
    "CREATE TABLE IF NOT EXISTS spent "
    "(day TEXT, currency TEXT, amount TEXT, PRIMARY KEY (day, currency))"
)
_SET = "INSERT OR REPLACE INTO spent VALUES (?, ?, ?)"
_GET = "SELECT amount FROM spent WHERE day = ? AND currency = ?"

_log = logging.getLogger(__name__)


def today() -> str:
    """The day it is, by UTC: it does not move with the device."""
    return time.strftime("%Y-%m-%d", time.gmtime())


class DailyTotal:
    """Sums by day and currency; any thread and any process may add."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._warned = False

    def require_usable(self) -> None:
        """Raises `UsageError` where nothing can be read or added."""
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
        """Add to a day's sum, unless that makes it more than `most`; False for nothing added.

        Nor is anything where the file cannot be used, which is logged, once.
        """
        try:
            return self._add(day, currency, cost, most)
        except (sqlite3.Error, OSError, InvalidOperation) as error:
            if not self._warned:
                _log.warning("costs cannot be stored in %r: %s", str(self.path), error)
            self._warned = True
            return False

    def _add(self, day: str, currency: str, cost: Decimal, most: Decimal | None) -> bool:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(private_file(self.path, os.O_RDWR))
        with closing(sqlite3.connect(self.path, isolation_level=None)) as file:
            file.execute(_TABLE)
            # Nobody else reads a sum that is about to change.
            file.execute("BEGIN IMMEDIATE")
            row = file.execute(_GET, (day, currency)).fetchone()
            # Less than nothing would be credit.
            found = max(Decimal(str(row[0])) if row else Decimal(0), Decimal(0))
            if not found.is_finite():
                raise InvalidOperation(f"{found} is not a sum")
            if most is not None and cost > 0 and found + cost > most:
                return False
            file.execute(_SET, (day, currency, str(max(found + cost, Decimal(0)))))
            file.execute("COMMIT")
            return True
