"""Stores that count the tokens each key has used: a SQLite file, memory, or a plugin's (Redis)."""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from edgewise.errors import UsageError
from edgewise.keys.limits import UNBOUNDED, KeyLimits, LimitsDown, LimitStore
from edgewise.registry import Registry

MEMORY = "memory"
"""Address of a store in this process's memory."""

BUSY_SECONDS = 1.0
"""Seconds to wait for another process that has locked the file."""

# The same for opening the file: gateways that start together create it one after the other.
OPENING_SECONDS = 10.0
# Days for which counts are kept, in case a clock is set back.
KEPT_DAYS = 8

_T = TypeVar("_T")


STORES: Registry[Callable[[str], LimitStore]] = Registry("limit store", "edgewise.limits", {})
"""Functions that open the store at a URL, by the URL's scheme, such as redis."""


def limits_at(where: str | None, keys: Path | None) -> KeyLimits:
    """Return a `KeyLimits`, not opened yet, that counts each key's tokens in a store at `where`.

    `where` is a file, a URL such as redis://..., or `MEMORY` (this process only); None is a file
    beside the key file `keys`, named like it with .limits added. Without a key file nothing is
    limited. Raises `UsageError` for `where` without `keys`, or for a URL that no store supports.
    """
    if keys is None and where is not None:
        raise UsageError("Limits need keys", hint="give a key file", setting="keys")
    if keys is None or where == MEMORY:
        return KeyLimits(SqliteLimits(None))
    if where is None:
        return KeyLimits(SqliteLimits(keys.with_name(keys.name + ".limits")))
    scheme, is_url, _ = where.partition("://")
    if not is_url:
        return KeyLimits(SqliteLimits(Path(where)))
    if scheme not in STORES:
        raise UsageError(
            f"Key usage cannot be stored at this {scheme}:// address",
            hint=f"name a file, memory, or a URL that begins with {', '.join(STORES.names())}",
        )
    return KeyLimits(STORES.load(scheme)(where))


_TABLE = """
CREATE TABLE IF NOT EXISTS tokens (
    day INTEGER, name TEXT, used INTEGER CHECK (typeof(used) = 'integer' AND used >= 0),
    PRIMARY KEY (day, name)
)
"""

# `needed` is 1 where nothing is added: would one more fit?
_ADD = """
INSERT INTO tokens SELECT :day, :name, max(0, :tokens) WHERE :needed <= :most
ON CONFLICT (day, name) DO UPDATE SET used = max(0, used + :tokens) WHERE used + :needed <= :most
"""


class SqliteLimits(LimitStore):
    """Counts tokens in a SQLite file, which gateways on one machine may share.

    A killed process loses no counts; a power failure may lose the latest.
    """

    def __init__(self, path: Path | None) -> None:
        """`path` is the SQLite file; None keeps the counts in memory."""
        self.where = str(path) if path else "memory of this process alone"
        self._path = path
        self._db: sqlite3.Connection | None = None
        # The event loop, which serves all devices, must not wait for a disk or another's lock.
        self._thread = ThreadPoolExecutor(1, "limits")

    async def open(self) -> None:
        """Open or create the file. Raises `UsageError` if that fails or it is no SQLite file."""
        try:
            await self._call(lambda: self._connected(OPENING_SECONDS))
        except (OSError, sqlite3.Error) as error:
            raise UsageError(
                f"Key usage cannot be stored in {str(self._path)!r}: {error}",
                hint="name a file in a writable folder, or a Redis",
            ) from error

    async def add(self, name: str, day: int, tokens: int, most: int = UNBOUNDED) -> bool:
        row = {"day": day, "name": name, "tokens": tokens, "needed": tokens or 1, "most": most}
        return await self._call(lambda: self._added(row)) > 0

    async def close(self) -> None:
        await self._call(self._close)
        self._thread.shutdown()

    async def _call(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _connected(self, patience: float) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        if self._path is not None:
            # SQLite's other files take over the mode of this one. One that is there is not
            # opened: closing it would end the locks that this process has on it.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        where = self._path or ":memory:"
        db = sqlite3.connect(where, patience, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            # No write waits for the disk, which would delay every consult.
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(_TABLE)
            db.execute("DELETE FROM tokens WHERE day < ?", (time.time() // 86_400 - KEPT_DAYS,))
            db.execute(f"PRAGMA busy_timeout = {round(1000 * BUSY_SECONDS)}")
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _added(self, row: dict[str, str | int]) -> int:
        """Add as `_ADD` says; return the number of rows written: 0 if the limit forbids it."""
        try:
            return self._connected(BUSY_SECONDS).execute(_ADD, row).rowcount
        except (OSError, sqlite3.Error) as error:
            if self._path is not None:
                # It is opened anew the next time.
                self._close()
            raise LimitsDown(f"{self.where}: {error}") from error
