"""Limits of a key: consults and token ids a second (token buckets), cloud tokens a day.

The day's tokens are reserved before a cloud is asked for them, and those that were not written are
given back, so that no crash and no crowd gets past the day's tokens. The arithmetic is here; a
`LimitStore` keeps the numbers.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from edgewise.errors import Fault
from edgewise.keys.keys import Key
from edgewise.wire.protocol import MAX_IDS

ASKS_BURST_SECONDS = 2.0
IDS_BURST_SECONDS = 10.0
"""How much of a rate a key may save up."""

MOST_DEBT = 2 * MAX_IDS
"""Ids are counted only after they came, so a key may owe some. A larger debt is forgiven."""

ROUNDING = 1e-3
"""Part of one id or consult that may be missing: times since 1970 are exact to a microsecond."""

DAY_SECONDS = 86_400

KEPT_DAYS = 8
"""Days that are kept for a key: a clock that goes back finds what was counted."""

DOWN_SECONDS = 1.0
"""How long a store that failed is not asked again."""

log = structlog.get_logger("edgewise.keys")

_T = TypeVar("_T")

Short = Literal["", "asks", "ids", "tokens"]
"""The limit that a key has reached."""


class Cost(NamedTuple):
    """Of a request. `ids` have come already: they are charged even if it is refused."""

    asks: int
    ids: int
    tokens: int


class Granted(NamedTuple):
    """Whether a request may go on: `wait` is 0, or the seconds until it may be tried again.

    `day` (of UTC, since 1970) is the one whose tokens were reserved.
    """

    wait: float
    short: Short
    day: int


class Used(msgspec.Struct, frozen=True):
    """What a key has used: when each bucket is full again (since 1970), and tokens by day.

    One number holds a token bucket: the generic cell rate algorithm.
    """

    asks: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    ids: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    days: dict[int, Annotated[int, msgspec.Meta(ge=0)]] = {}


class LimitsDown(Exception):
    """The store cannot be read or written now. The text says why, without secrets."""


class LimitStore(ABC):
    """Keeps what keys have used, by their names. `where` says in what, without secrets."""

    where: str

    @abstractmethod
    async def open(self) -> None:
        """Raises `UsageError` for a store that cannot work, `LimitsDown` for one that is down."""

    @abstractmethod
    async def change(self, name: str, step: Callable[[Used, float], tuple[Used, _T]]) -> _T:
        """Replace what `name` has used by what `step` makes of it, atomically.

        `step(used, now)` may be called several times. Raises `LimitsDown`.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of files and connections."""

    async def take(self, key: Key, cost: Cost) -> Granted:
        """Charge `cost` if every limit allows it. Raises `LimitsDown`.

        A cost of no consults or no tokens is granted where one of each would be.
        """
        return await self.change(key.name, lambda used, now: _taken(used, now, key, cost))

    async def settle(self, key: Key, day: int, *, unused: int, ids: int) -> float:
        """Give back `unused` tokens of `day` and charge `ids`.

        Returns the seconds until the key owes no ids. Raises `LimitsDown`.
        """
        return await self.change(
            key.name, lambda used, now: _settled(used, now, key, day, unused, ids)
        )


class _Bucket(NamedTuple):
    """A token bucket of `most`, filled at `rate` a second (0: no limit); it may owe `debt`."""

    rate: float
    most: float
    debt: float = 0.0

    def wait(self, full_at: float, now: float) -> float:
        """Seconds until one is in it."""
        if not self.rate:
            return 0.0
        missing = 1 - self.most + self._until_full(full_at, now) * self.rate
        return missing / self.rate if missing > ROUNDING else 0.0

    def after(self, full_at: float, now: float, spent: float) -> float:
        """When it is full, after `spent` was taken out."""
        if not self.rate:
            return 0.0
        return now + min(self._until_full(full_at, now) + spent / self.rate, self._longest)

    def _until_full(self, full_at: float, now: float) -> float:
        # Bounded, so that a clock that goes back locks nobody out.
        return min(max(0.0, full_at - now), self._longest)

    @property
    def _longest(self) -> float:
        return (self.most + self.debt) / self.rate


def _buckets(key: Key) -> tuple[_Bucket, _Bucket]:
    """Of consults, and of ids."""
    asks, ids = key.asks_per_second, key.ids_per_second
    return (
        _Bucket(asks, max(1.0, asks * ASKS_BURST_SECONDS)),
        _Bucket(ids, max(1.0, ids * IDS_BURST_SECONDS), MOST_DEBT),
    )


def _taken(used: Used, now: float, key: Key, cost: Cost) -> tuple[Used, Granted]:
    (asks, ids), day = _buckets(key), int(now // DAY_SECONDS)
    spent = used.days.get(day, 0)
    granted = Granted(0.0, "", day)
    if wait := ids.wait(used.ids, now):
        granted = Granted(wait, "ids", day)
    elif wait := asks.wait(used.asks, now):
        granted = Granted(wait, "asks", day)
    elif 0 < key.tokens_per_day < spent + max(1, cost.tokens):
        granted = Granted((day + 1) * DAY_SECONDS - now, "tokens", day)
    else:
        used = replace(used, asks=asks.after(used.asks, now, cost.asks))
        if key.tokens_per_day:
            # The days that were booked last.
            others = [booked for booked in used.days.items() if booked[0] != day]
            kept = [*others, (day, spent + cost.tokens)][-KEPT_DAYS:]
            used = replace(used, days=dict(kept))
    return replace(used, ids=ids.after(used.ids, now, cost.ids)), granted


def _settled(
    used: Used, now: float, key: Key, day: int, unused: int, charged: int
) -> tuple[Used, float]:
    (_, ids), days = _buckets(key), used.days
    ids_at = ids.after(used.ids, now, charged)
    if unused and day in days:
        days = {**days, day: max(0, days[day] - unused)}
    return Used(used.asks, ids_at, days), ids.wait(ids_at, now)


class OverLimit(Exception):
    """A request that a key may not make now. `reason` and `retry_after` (seconds) are its reply."""

    def __init__(self, reason: Fault, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


class Unbilled:
    """Ids that came over a connection and were not charged to its key yet."""

    def __init__(self, ids: int = 0) -> None:
        self.ids = ids

    def taken(self) -> int:
        """The ids, to be charged now."""
        ids, self.ids = self.ids, 0
        return ids


class Spent:
    """The outcome of a consult: tokens written, and prompt ids that the engine computed.

    `asked` says whether an engine was asked, so that it may have worked for nothing.
    """

    def __init__(self) -> None:
        self.tokens = self.computed = 0
        self.asked = False


_MESSAGES: dict[Short, str] = {
    "": "",
    "asks": "Too many requests in too short a time; try again later.",
    "ids": "Too many token ids in too short a time; try again later.",
    "tokens": "The key's tokens of the day are used up, or promised to other requests.",
}


class KeyLimits:
    """The limits of all keys. A store that is down grants nothing, since quotas protect money."""

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self._running: set[asyncio.Task[Any]] = set()
        self._opened = False
        self._down = 0.0

    async def open(self) -> None:
        """Raises `UsageError`. A store that is down may come up later. Twice does nothing."""
        if self._opened:
            return
        try:
            await self._store.open()
            log.info("limits kept", where=self._store.where)
        except LimitsDown as error:
            self._note_down(error)
        self._opened = True

    async def close(self) -> None:
        """Finish what is being settled, then close the store."""
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._store.close()

    @asynccontextmanager
    async def spending(self, key: Key, unbilled: Unbilled, tokens: int) -> AsyncGenerator[Spent]:
        """Around a consult for `tokens`. Raises `OverLimit`."""
        if 0 < key.tokens_per_day < tokens:
            message = f"The key may write {key.tokens_per_day} tokens a day, not {tokens} at once."
            raise OverLimit("rejected", message)
        ids = unbilled.taken()
        day = await self._reserve(key, Cost(1, ids, tokens))
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
            more = max(0, spent.computed - ids)
            if key.tokens_per_day or (more and key.ids_per_second):
                work = self._settle(key, day, tokens - spent.tokens, more)
                await asyncio.shield(self._begin(work))

    async def reserve(self, key: Key, tokens: int) -> int:
        """Reserve `tokens` of the day before a cloud is asked for them. Raises `OverLimit`.

        Returns the day, for `give_back`. What is never given back stays charged.
        """
        return await self._reserve(key, Cost(0, 0, tokens)) if key.tokens_per_day else 0

    async def give_back(self, key: Key, day: int, unused: int) -> None:
        """Give back what was reserved and not written; below 0 where more was written."""
        if key.tokens_per_day and unused:
            await asyncio.shield(self._begin(self._settle(key, day, unused, 0)))

    async def may_warm(self, key: Key, unbilled: Unbilled) -> bool:
        """Whether pushed ids may be computed: the key could make a consult now."""
        try:
            return not (await self._take(key, Cost(0, unbilled.taken(), 0))).wait
        except LimitsDown:
            return False

    async def charge(self, key: Key, unbilled: Unbilled) -> float:
        """Charge ids; returns the seconds until the key owes none."""
        ids = unbilled.taken()
        if not key.ids_per_second:
            return 0.0
        return await asyncio.shield(self._begin(self._settle(key, 0, 0, ids)))

    async def pay(self, key: Key, unbilled: Unbilled) -> None:
        """Charge ids, and wait until the key owes none."""
        while wait := await self.charge(key, unbilled):
            await asyncio.sleep(wait)

    async def _reserve(self, key: Key, cost: Cost) -> int:
        taking = self._begin(self._take(key, cost))
        try:
            granted = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._begin(self._undo(key, cost, taking))
            raise
        except LimitsDown as error:
            message = "The server cannot count what the key uses now; try again later."
            raise OverLimit("unavailable", message, DOWN_SECONDS) from error
        if granted.wait:
            raise OverLimit("unavailable", _MESSAGES[granted.short], granted.wait)
        return granted.day

    async def _undo(self, key: Key, cost: Cost, taking: "asyncio.Task[Granted]") -> None:
        try:
            granted = await taking
        except LimitsDown:
            return
        if not granted.wait:
            await self._settle(key, granted.day, cost.tokens, 0)

    async def _take(self, key: Key, cost: Cost) -> Granted:
        if not (key.asks_per_second or key.ids_per_second or key.tokens_per_day):
            return Granted(0.0, "", 0)
        return await self._tried(self._store.take(key, cost))

    async def _settle(self, key: Key, day: int, unused: int, ids: int) -> float:
        try:
            return await self._tried(self._store.settle(key, day, unused=unused, ids=ids))
        except LimitsDown:
            # What was reserved stays charged, which is the safe side.
            return 0.0

    async def _tried(self, work: Coroutine[Any, Any, _T]) -> _T:
        if time.monotonic() < self._down:
            work.close()
            raise LimitsDown("it failed a moment ago")
        try:
            done = await work
        except LimitsDown as error:
            self._note_down(error)
            raise
        if self._down:
            log.info("limits kept again")
        self._down = 0.0
        return done

    def _note_down(self, error: LimitsDown) -> None:
        if not self._down:
            log.error("limits not kept: requests of limited keys are refused", why=str(error))
        self._down = time.monotonic() + DOWN_SECONDS

    def _begin(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Work that goes on after the request is gone."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task
