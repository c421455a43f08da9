"""What keys have used, in a SQLite file: it survives a kill, and gateways on one machine share it.

In write-ahead mode without waiting for the disk at each change: a killed gateway loses nothing, a
machine without power the last moments at most.
"""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from edgewise.errors import UsageError
from edgewise.keys.key_file import Key
from edgewise.keys.limits import (
    ASKS_BURST_SECONDS,
    DAY_SECONDS,
    IDS_BURST_SECONDS,
    MOST_DEBT,
    ROUNDING,
    Cost,
    Granted,
    LimitsDown,
    LimitStore,
)

BUSY_SECONDS = 1.0
"""How long another process may hold the file."""

OPENING_SECONDS = 10.0
"""The same at the start: gateways that begin together make it one after the other."""

KEPT_DAYS = 8
"""Of a key. More than today, so that a clock that goes back finds what was counted."""

_VERSION = 1
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS rates (name TEXT PRIMARY KEY, asks REAL NOT NULL, ids REAL NOT NULL);
CREATE TABLE IF NOT EXISTS days (
    name TEXT NOT NULL, day INTEGER NOT NULL, used INTEGER NOT NULL, UNIQUE (name, day)
);
PRAGMA user_version = {_VERSION};
"""

_T = TypeVar("_T")


class _Bucket(NamedTuple):
    """A token bucket as one number, the time at which it is full (the generic cell rate algorithm).

    It holds `most`, may owe `debt`, and without a rate is never empty.
    """

    rate: float
    most: float
    debt: float = 0.0

    def credit(self, full_at: float, now: float) -> float:
        """What is in it at `now`."""
        if not self.rate:
            return 1.0
        return self.most - self._until_full(full_at, now) * self.rate

    def after(self, full_at: float, now: float, spent: float) -> float:
        """When it is full, once `spent` is taken out."""
        if not self.rate:
            return 0.0
        # Bounded by the debt, too, where the clock went back.
        until = self._until_full(full_at, now) + spent / self.rate
        return now + min(until, (self.most + self.debt) / self.rate)

    def wait(self, full_at: float, now: float) -> float:
        """Seconds until one is in it."""
        missing = 1 - self.credit(full_at, now)
        return missing / self.rate if missing > ROUNDING else 0.0

    def _until_full(self, full_at: float, now: float) -> float:
        return min(max(0.0, full_at - now), (self.most + self.debt) / self.rate)


def _asks(key: Key) -> _Bucket:
    rate = key.asks_per_second
    return _Bucket(rate, max(1.0, rate * ASKS_BURST_SECONDS))


def _ids(key: Key) -> _Bucket:
    rate = key.ids_per_second
    return _Bucket(rate, max(1.0, rate * IDS_BURST_SECONDS), MOST_DEBT)


class SqliteLimits(LimitStore):
    """Implements `LimitStore`, in a thread of its own. `clock` tells seconds since 1970."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Without a path, in this process's memory."""
        self.where = str(path) if path else "memory of this process alone"
        self._path, self._clock = path, clock
        self._db: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "limits")

    async def open(self) -> None:
        """Raises `UsageError` where the file cannot be made, or is another kind of file."""
        await self._call(self._open)

    async def take(self, key: Key, cost: Cost) -> Granted:
        return await self._call(lambda: self._take(key, cost))

    async def settle(self, key: Key, day: int, *, unused: int, ids: int) -> float:
        return await self._call(lambda: self._settle(key, day, unused, ids))

    async def close(self) -> None:
        await self._call(self._close)
        self._thread.shutdown()

    async def _call(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self) -> None:
        try:
            self._connected(OPENING_SECONDS)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(
                f"What keys use cannot be kept in {str(self._path)!r}: {error}",
                hint="name a file in a folder that may be written, or a Redis",
            ) from error

    def _connected(self, patience: float = BUSY_SECONDS) -> sqlite3.Connection:
        if self._db is None:
            if self._path is not None:
                # SQLite's other files take over the mode of this one. One that is there is not
                # opened: closing it would end the locks that this process has on it.
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            db = sqlite3.connect(
                self._path or ":memory:",
                timeout=patience,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                version = int(db.execute("PRAGMA user_version").fetchone()[0])
                if version not in (0, _VERSION):
                    raise sqlite3.DatabaseError("it was written by another version of Edgewise")
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                db.executescript(_SCHEMA)
                db.execute(f"PRAGMA busy_timeout = {round(1000 * BUSY_SECONDS)}")
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextlib.contextmanager
    def _change(self) -> Generator[sqlite3.Connection]:
        """A transaction; raises `LimitsDown`, and opens the file anew the next time."""
        try:
            db = self._connected()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                # Where the disk is full SQLite has rolled back itself, and would say that instead.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except (OSError, sqlite3.Error) as error:
            if self._path is not None:
                self._close()
            raise LimitsDown(f"{str(self._path)!r}: {error}") from error

    def _take(self, key: Key, cost: Cost) -> Granted:
        asks, ids = _asks(key), _ids(key)
        with self._change() as db:
            now = self._clock()
            day = int(now // DAY_SECONDS)
            asks_at, ids_at = _rates(db, key)
            granted = Granted(0.0, "", day)
            if wait := ids.wait(ids_at, now):
                granted = Granted(wait, "ids", day)
            elif wait := asks.wait(asks_at, now):
                granted = Granted(wait, "asks", day)
            elif not _reserved(db, key, day, cost.tokens):
                granted = Granted((day + 1) * DAY_SECONDS - now, "tokens", day)
            else:
                asks_at = asks.after(asks_at, now, cost.asks)
            _keep_rates(db, key, asks_at, ids.after(ids_at, now, cost.ids))
        return granted

    def _settle(self, key: Key, day: int, unused: int, charged: int) -> float:
        ids = _ids(key)
        with self._change() as db:
            now = self._clock()
            asks_at, ids_at = _rates(db, key)
            ids_at = ids.after(ids_at, now, charged)
            if charged:
                _keep_rates(db, key, asks_at, ids_at)
            if unused:
                given = "UPDATE days SET used = max(0, used - ?) WHERE name = ? AND day = ?"
                db.execute(given, (unused, key.name, day))
        return ids.wait(ids_at, now)


def _rates(db: sqlite3.Connection, key: Key) -> tuple[float, float]:
    row = db.execute("SELECT asks, ids FROM rates WHERE name = ?", (key.name,)).fetchone()
    return (float(row[0]), float(row[1])) if row else (0.0, 0.0)


def _keep_rates(db: sqlite3.Connection, key: Key, asks_at: float, ids_at: float) -> None:
    db.execute("REPLACE INTO rates VALUES (?, ?, ?)", (key.name, asks_at, ids_at))


def _reserved(db: sqlite3.Connection, key: Key, day: int, tokens: int) -> bool:
    """Whether a day's tokens, or one of them, are left; then they are taken."""
    if not key.tokens_per_day:
        return True
    told = "SELECT used FROM days WHERE name = ? AND day = ?"
    row = db.execute(told, (key.name, day)).fetchone()
    used = int(row[0]) if row else 0
    if used + max(1, tokens) > key.tokens_per_day:
        return False
    if row is None:
        db.execute("INSERT INTO days VALUES (?, ?, 0)", (key.name, day))
        newest = "SELECT rowid FROM days WHERE name = ? ORDER BY rowid DESC LIMIT ?"
        db.execute(
            f"DELETE FROM days WHERE name = ? AND rowid NOT IN ({newest})",  # noqa: S608
            (key.name, key.name, KEPT_DAYS),
        )
    taken = "UPDATE days SET used = used + ? WHERE name = ? AND day = ?"
    db.execute(taken, (tokens, key.name, day))
    return True
