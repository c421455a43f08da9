"""Stores of what keys have used: a SQLite file, a Redis, or the memory of this process."""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from edgewise.errors import UsageError
from edgewise.keys.limits import KeyLimits, LimitsDown, LimitStore, Used

MEMORY = "memory"
SCHEMES = ("redis", "rediss", "unix")

BUSY_SECONDS = 1.0
"""How long another process may hold the file."""

OPENING_SECONDS = 10.0
"""The same at the start: gateways that start together create it one after the other."""

ANSWER_SECONDS = 1.0
"""How long Redis may take to answer."""

CONNECTIONS = 32
CROWD_SECONDS = 5.0
"""How long a request may wait for one of the connections to Redis."""

TRIES = 30
"""Attempts to replace a value in Redis that other gateways replace at the same time."""

KEPT_SECONDS = 8 * 86_400
"""How long Redis keeps a key that nobody uses."""

_T = TypeVar("_T")
Step = Callable[[Used, float], tuple[Used, _T]]


def limits_at(where: str | None, keys: Path | None) -> KeyLimits:
    """Limits kept at `where`: a file, the address of a Redis, or memory (this process only).

    None is a file beside `keys`. Without keys nothing is limited. Raises `UsageError`.
    """
    if keys is None and where is not None:
        raise UsageError("Limits belong to keys", hint="name a file of keys", setting="keys")
    if keys is None or where == MEMORY:
        return KeyLimits(SqliteLimits(None))
    if where is None:
        return KeyLimits(SqliteLimits(keys.with_name(keys.name + ".limits")))
    scheme, separator, _ = where.partition("://")
    if not separator:
        return KeyLimits(SqliteLimits(Path(where)))
    if scheme not in SCHEMES:
        raise UsageError(
            f"Limits cannot be kept at {scheme}://",
            hint="name a file, a redis:// address, or memory",
        )
    return KeyLimits(RedisLimits(where))


def _decoded(value: str | bytes | None, where: str) -> Used:
    """Raises `LimitsDown` for anything but what a store wrote: it must not become a credit."""
    if value is None:
        return Used()
    try:
        return msgspec.json.decode(value, type=Used)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LimitsDown(f"{where} holds something else ({error})") from error


class SqliteLimits(LimitStore):
    """A SQLite file: it survives a kill, and gateways on one machine share it.

    In write-ahead mode without waiting for the disk: a killed gateway loses nothing, a machine
    without power the last moments. Works in a thread of its own; `clock` is seconds since 1970.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Without a path, in this process's memory."""
        self.where = str(path) if path else "memory of this process alone"
        self._path, self._clock = path, clock
        self._db: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "limits")

    async def open(self) -> None:
        """Raises `UsageError` where the file cannot be made, or is another kind of file."""
        try:
            await self._call(lambda: self._connected(OPENING_SECONDS))
        except (OSError, sqlite3.Error) as error:
            raise UsageError(
                f"Limits cannot be kept in {str(self._path)!r}: {error}",
                hint="name a file in a folder that may be written, or a Redis",
            ) from error

    async def change(self, name: str, step: Step[_T]) -> _T:
        return await self._call(lambda: self._change(name, step))

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
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("CREATE TABLE IF NOT EXISTS used (name TEXT PRIMARY KEY, value TEXT)")
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

    def _change(self, name: str, step: Step[_T]) -> _T:
        try:
            with self._connected(BUSY_SECONDS) as db:
                db.execute("BEGIN IMMEDIATE")
                row = db.execute("SELECT value FROM used WHERE name = ?", (name,)).fetchone()
                used, result = step(_decoded(row and row[0], self.where), self._clock())
                value = msgspec.json.encode(used).decode()
                db.execute("REPLACE INTO used VALUES (?, ?)", (name, value))
            return result
        except (OSError, sqlite3.Error) as error:
            if self._path is not None:
                # It is opened anew the next time.
                self._close()
            raise LimitsDown(f"{str(self._path)!r}: {error}") from error


# A whole value is replaced if it is still the one that was read: the arithmetic stays in Python.
_SWAP = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""


class RedisLimits(LimitStore):
    """A Redis, which gateways on several machines share, and its clock.

    Needs the library `redis` (the extra `gateway-redis`).
    """

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        """`redis://`, `rediss://` or `unix://`; a password in it is never shown.

        `clock` (seconds since 1970) stands in for Redis's own. Raises `UsageError`.
        """
        try:
            from redis.asyncio import BlockingConnectionPool, Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as error:
            raise UsageError(
                "Limits in a Redis need redis: pip install 'edgewise[gateway-redis]'."
            ) from error
        self._clock = clock
        # Requests of one key take turns here, so that only other gateways can be in the way.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        try:
            parts = urlsplit(url)
            self.where = f"{parts.scheme}://{parts.hostname or ''}:{parts.port or 6379}"
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=CROWD_SECONDS,
                socket_timeout=ANSWER_SECONDS,
                socket_connect_timeout=ANSWER_SECONDS,
                # Once: a connection that Redis closed meanwhile is not a failure.
                retry=Retry(NoBackoff(), 1),
            )
        except (ValueError, TypeError) as error:
            # What it says may hold the password.
            raise UsageError(
                "That is not the address of a Redis",
                hint="redis://[:PASSWORD@]HOST[:PORT][/NUMBER]",
            ) from error
        self._redis: Redis = Redis(connection_pool=pool)
        self._swap = self._redis.register_script(_SWAP)

    async def open(self) -> None:
        """Raises `UsageError` where Redis refuses the password, `LimitsDown` where it is away."""
        from redis.exceptions import AuthenticationError, AuthorizationError

        try:
            with self._answering():
                await self._redis.get("edgewise:used:")
        except LimitsDown as error:
            if isinstance(error.__cause__, AuthenticationError | AuthorizationError):
                raise UsageError(
                    f"The Redis at {self.where} refuses the password", hint="check its address"
                ) from error
            raise

    async def change(self, name: str, step: Step[_T]) -> _T:
        at = f"edgewise:used:{name}"
        async with self._turns[name]:
            for _ in range(TRIES):
                with self._answering():
                    reading: Any = self._redis.pipeline(transaction=False)
                    before, (seconds, micros) = await reading.get(at).time().execute()
                now = self._clock() if self._clock else seconds + micros / 1e6
                used, result = step(_decoded(before, self.where), now)
                after = msgspec.json.encode(used)
                with self._answering():
                    if await self._swap(keys=[at], args=[before or b"", after, KEPT_SECONDS]):
                        return result
        raise LimitsDown(f"{self.where}: other gateways use the key all the time")

    async def close(self) -> None:
        await self._redis.aclose(close_connection_pool=True)

    @contextlib.contextmanager
    def _answering(self) -> Generator[None]:
        """Raises `LimitsDown` where Redis fails or answers something else."""
        from redis.exceptions import RedisError

        try:
            yield
        except (RedisError, OSError, TimeoutError, ValueError, TypeError, LookupError) as error:
            raise LimitsDown(f"{self.where}: {type(error).__name__}") from error
