"""Limits of API keys: consults and token ids a second, tokens that the cloud model writes a day.

Consults and ids are counted in this process, a day's tokens in a `LimitStore`, perhaps shared.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from edgewise.errors import Fault
from edgewise.keys.keys import Key
from edgewise.wire.protocol import MAX_IDS

# Drafts send several consults at once; ids come in one long prompt.
ASKS_BURST_SECONDS = 2.0
IDS_BURST_SECONDS = 10.0
"""Sizes of the token buckets of consults and ids, in seconds of the key's rate."""

MOST_DEBT = 2 * MAX_IDS
"""Most token ids that a key may owe, as ids are charged after they came; more is forgiven."""

ROUNDING = 1e-6
"""Waits below this many seconds count as zero: clocks are not exact."""

# Days are UTC, of equal length, as POSIX counts them.
DAY_SECONDS = 86_400

UNBOUNDED = 1 << 62
"""Number of tokens that stands for no limit."""

DOWN_SECONDS = 1.0
"""Seconds until a store that failed is tried again."""

log = structlog.get_logger("edgewise.keys")

_T = TypeVar("_T")


class LimitsDown(Exception):
    """A `LimitStore` cannot be read or written now. The message says why, without secrets."""


class LimitStore(ABC):
    """Base class of stores that count the tokens that each key has used on each day.

    `where` names the store in logs, such as its file or its URL without a password.
    """

    where: str

    @abstractmethod
    async def open(self) -> None:
        """Open the store. Raises `LimitsDown` if it is down, `UsageError` if it can never work."""

    @abstractmethod
    async def add(self, name: str, day: int, tokens: int, most: int = UNBOUNDED) -> bool:
        """Add `tokens` to those that the key `name` used on `day`; return whether they were added.

        Atomic. Nothing is added if the sum would exceed `most`. Negative `tokens` are subtracted; 0
        asks whether one more fits. `day` counts days (UTC) from 1970-01-01. Raises `LimitsDown` if
        the store cannot be read or written now.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the store's files and connections."""


class Bucket:
    """A token bucket: limits units, such as requests or ids, to a rate in units per second.

    The full bucket holds the units of `burst` seconds, at least one. `take` may lower the level
    below zero, to -`debt` units at most; the rest is forgiven. The bucket's state is one number,
    the time at which it will be full (the generic cell rate algorithm).
    """

    def __init__(self, burst: float, debt: float = 0.0) -> None:
        self._burst, self._debt = burst, debt
        self._full_at = 0.0

    def wait(self, rate: float, now: float) -> float:
        """Return the seconds until the bucket, which fills by `rate` a second, holds one unit.

        0 if it holds one now, or if `rate` is 0 (no limit). `now`: seconds of one monotonic clock.
        """
        if not rate:
            return 0.0
        seconds = self._full_at - now + 1 / rate - max(self._burst, 1 / rate)
        return seconds if seconds > ROUNDING else 0.0

    def take(self, amount: float, rate: float, now: float) -> None:
        """Take `amount` units out, even below zero; `rate` and `now` are those of `wait`."""
        if rate:
            longest = max(self._burst, 1 / rate) + self._debt / rate
            self._full_at = min(max(self._full_at, now) + amount / rate, now + longest)


class OverLimit(Exception):
    """Raised for a request that exceeds a limit of its key, or finds too many others waiting.

    `reason` names the failure. Try again after `retry_after` seconds (None: never, or unknown).
    """

    def __init__(self, reason: Fault, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


@dataclass
class Spent:
    """What a consult used: `tokens` written, and prompt ids that the engine `computed`.

    The block of `KeyLimits.spending` fills it in, and sets `asked` when the request goes to an
    engine. If that request is then cancelled or times out, all the tokens asked for are charged: as
    ids if the key's `ids_per_second` is not 0, else as tokens written.
    """

    tokens: int = 0
    computed: int = 0
    asked: bool = False


class KeyLimits:
    """Enforces the limits of all keys. Refuses keys with a daily limit while `store` is down."""

    def __init__(
        self,
        store: LimitStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        calendar: Callable[[], float] = time.time,
    ) -> None:
        """`store` counts each day's tokens. `clock` is monotonic, `calendar` seconds since 1970."""
        self._store, self._clock, self._calendar = store, clock, calendar
        # By key: consults, and ids.
        self._buckets = defaultdict[str, tuple[Bucket, Bucket]](
            lambda: (Bucket(ASKS_BURST_SECONDS), Bucket(IDS_BURST_SECONDS, MOST_DEBT))
        )
        # Apart, or a device that writes fast would use up its consults.
        self._prefetches = defaultdict[str, Bucket](lambda: Bucket(ASKS_BURST_SECONDS))
        self._running: set[asyncio.Task[Any]] = set()
        self._down_until = 0.0

    async def open(self) -> None:
        """Open the store. If it is down, this is logged, and later calls try again.

        Raises `UsageError` if it can never work, for example with a wrong password.
        """
        try:
            await self._store.open()
            log.info("limits kept", where=self._store.where)
        except LimitsDown as error:
            self._note_down(error)

    async def close(self) -> None:
        """Wait until unused tokens have been given back, then close the store."""
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._store.close()

    @asynccontextmanager
    async def spending(self, key: Key, tokens: int, *, ids: int = 0) -> AsyncGenerator[Spent]:
        """Return a context manager that charges `key` for the consult made inside the block.

        `tokens` is the most that the consult may write. If `key.tokens_per_day` is set, they are
        reserved before the block; those not written, by the `Spent` that the block fills in, are
        given back after it. `ids`, the number of ids in the request, counts against
        `ids_per_second`; so do, after the block, those `computed` beyond them. Before the block,
        raises `OverLimit` if a limit is exceeded, or if `key.tokens_per_day` is set and the store
        is down.
        """
        self.admit(key, ids)
        # After the check: a refused consult costs nothing.
        self._buckets[key.name][0].take(1, key.consults_per_second, self._clock())
        # Before the consult: neither a crash nor parallel requests exceed the day's limit.
        day = await self._reserve(key, tokens)
        spent = Spent()
        try:
            yield spent
        except (asyncio.CancelledError, TimeoutError):
            # Nobody knows what the engine wrote until then. It counts as ids; where those have no
            # limit, as tokens, or a key could let an engine write for nothing without end.
            if spent.asked and key.ids_per_second:
                spent.computed += ids + tokens
            elif spent.asked:
                spent.tokens = tokens
            raise
        finally:
            self.charge(key, max(0, spent.computed - ids))
            if key.tokens_per_day and (unused := tokens - spent.tokens):
                # Shielded: a device that leaves now must not lose what it did not use.
                await asyncio.shield(self._begin(self._give_back(key, day, unused)))

    def admit(self, key: Key, ids: int) -> None:
        """Charge `key` for `ids`, the number of token ids in a request; check limits per second.

        Raises `OverLimit` if the rate of ids or consults was used up before. The ids stay charged.
        """
        (asks, bucket), now = self._buckets[key.name], self._clock()
        waits = {
            "token ids": bucket.wait(key.ids_per_second, now),
            "requests": asks.wait(key.consults_per_second, now),
        }
        bucket.take(ids, key.ids_per_second, now)
        for what, wait in waits.items():
            if wait:
                message = f"Too many {what} in too short a time; try again later."
                raise OverLimit("unavailable", message, wait)

    async def may_prefetch(self, key: Key, ids: int) -> bool:
        """Charge `key` for a prefetch of `ids` (a number) token ids; return whether it may be made.

        A prefetch lets the engine prefill a prompt early. False if a limit of the key is used up,
        or if it has a daily limit and the store is down; the ids are charged all the same. As many
        prefetches a second are allowed as consults, and counted apart.
        """
        bucket, rate, now = self._prefetches[key.name], key.consults_per_second, self._clock()
        with suppress(OverLimit):
            self.admit(key, ids)
            await self._reserve(key, 0)
            if not bucket.wait(rate, now):
                bucket.take(1, rate, now)
                return True
        return False

    def charge(self, key: Key, ids: int) -> float:
        """Charge `key` for `ids`, a number of token ids.

        Returns the seconds until `key.ids_per_second` allows more, 0 if it does now.
        """
        (_, bucket), now = self._buckets[key.name], self._clock()
        bucket.take(ids, key.ids_per_second, now)
        return bucket.wait(key.ids_per_second, now)

    async def _reserve(self, key: Key, tokens: int) -> int:
        """Reserve `tokens` of today's limit; return the day (0: no limit). Raises `OverLimit`."""
        most = key.tokens_per_day
        if not most:
            return 0
        if tokens > most:
            message = f"The key may write {most} tokens a day, not {tokens} at once."
            # Not a matter of time: no day would allow it.
            raise OverLimit("rejected", message)
        now = self._calendar()
        day = int(now // DAY_SECONDS)
        reserving = self._begin(self._add(key, day, tokens, most))
        try:
            granted = await asyncio.shield(reserving)
        except asyncio.CancelledError:
            # The store may reserve them yet.
            self._begin(self._give_back(key, day, tokens, reserving))
            raise
        except LimitsDown as error:
            message = "The server cannot count what the key uses now; try again later."
            raise OverLimit("unavailable", message, DOWN_SECONDS) from error
        if not granted:
            message = "The key's tokens of the day are used up, or promised to other requests."
            raise OverLimit("unavailable", message, (day + 1) * DAY_SECONDS - now)
        return day

    async def _give_back(
        self, key: Key, day: int, tokens: int, reserving: "asyncio.Task[bool] | None" = None
    ) -> None:
        """Give `tokens` back (below 0: charge more), but not if the task `reserving` added none."""
        # If the store is down, what was reserved stays charged: the safe side.
        with suppress(LimitsDown):
            if reserving is None or await reserving:
                await self._add(key, day, -tokens)

    def _begin(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Start a task that goes on after its request has ended."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _add(self, key: Key, day: int, tokens: int, most: int = UNBOUNDED) -> bool:
        """Call `LimitStore.add`. Raises `LimitsDown`, also for `DOWN_SECONDS` after a failure."""
        # Else each request would wait for a store that is known to be down.
        if time.monotonic() < self._down_until:
            raise LimitsDown("it failed a moment ago")
        try:
            added = await self._store.add(key.name, day, tokens, most)
        except LimitsDown as error:
            self._note_down(error)
            raise
        if self._down_until:
            log.info("limits kept again")
        self._down_until = 0.0
        return added

    def _note_down(self, error: LimitsDown) -> None:
        if not self._down_until:
            log.error("limits not kept: requests of limited keys are refused", why=str(error))
        self._down_until = time.monotonic() + DOWN_SECONDS
