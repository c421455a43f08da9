"""What a key may use, and has used: consults and ids a second, cloud tokens a day.

Tokens are reserved before an engine is asked, and those that were not written are given back, so
that no crash and no crowd gets past the day's tokens. What is counted lies in a `LimitStore`.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import structlog

from edgewise.errors import Fault
from edgewise.keys.key_file import Key
from edgewise.wire.protocol import MAX_IDS

ASKS_BURST_SECONDS = 2.0
IDS_BURST_SECONDS = 10.0
"""How much of a rate a key may save up."""

MOST_DEBT = 2 * MAX_IDS
"""Ids are known only once they came, so that a key may owe some; more are forgiven."""

ROUNDING = 1e-3
"""Of one, that may be missing: times since 1970 are exact to less than a microsecond only."""

DAY_SECONDS = 86_400

DOWN_SECONDS = 1.0
"""How long a store that failed is not asked again."""

log = structlog.get_logger("edgewise.keys")

_T = TypeVar("_T")

Short = Literal["", "asks", "ids", "tokens"]
"""What a key has too little of."""


class Cost(NamedTuple):
    """What a frame costs. `ids` came already, so they are charged whatever is answered."""

    asks: int
    ids: int
    tokens: int


class Granted(NamedTuple):
    """Whether a key may go on: `wait` is 0, or the seconds until it may try again.

    `day`, of UTC, is the one whose tokens were reserved.
    """

    wait: float
    short: Short
    day: int


class LimitsDown(Exception):
    """A store cannot be read or written now; the text says why, without secrets."""


class LimitStore(ABC):
    """What keys have used, by their names. Every call is all or nothing, beside any other's.

    `where` says who shares it, without secrets.
    """

    where: str

    @abstractmethod
    async def open(self) -> None:
        """Raises `UsageError` for a store that cannot work, `LimitsDown` for one that is down."""

    @abstractmethod
    async def take(self, key: Key, cost: Cost) -> Granted:
        """Charge `cost` where the key has enough of everything. Raises `LimitsDown`.

        A cost without asks or tokens is granted where one of each would be.
        """

    @abstractmethod
    async def settle(self, key: Key, day: int, *, unused: int, ids: int) -> float:
        """Give back `unused` tokens of `day`, charge `ids`; seconds until it has ids to spend.

        Raises `LimitsDown`.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of files and connections."""


class OverLimit(Exception):
    """A consult that a key may not make now; `reason` and `retry_after` (seconds) are its reply."""

    def __init__(self, reason: Fault, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


class Tab:
    """Ids that came over a connection and were not charged to its key yet."""

    def __init__(self) -> None:
        self.ids = 0

    def taken(self) -> int:
        """What is on it, to be charged now."""
        ids, self.ids = self.ids, 0
        return ids


class Spent:
    """What a consult came to: its tokens, and prompt ids that the engine computed.

    `asked` says whether an engine was, so that it may have worked for nothing.
    """

    def __init__(self) -> None:
        self.tokens = self.computed = 0
        self.asked = False


_TOLD: dict[Short, str] = {
    "": "",
    "asks": "Too many requests in too short a time; try again later.",
    "ids": "Too many token ids in too short a time; try again later.",
    "tokens": "The key's tokens of the day are used up, or promised to other requests.",
}


class KeyLimits:
    """Every key's limits. Where the store is down nothing is granted: a quota protects money."""

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self._running: set[asyncio.Task[Any]] = set()
        self._opened = False
        self._down = 0.0

    async def open(self) -> None:
        """Raises `UsageError`; a store that is down may come up later. Twice does nothing."""
        if self._opened:
            return
        try:
            await self._store.open()
            log.info("limits kept", where=self._store.where)
        except LimitsDown as error:
            self._note_down(error)
        self._opened = True

    async def close(self) -> None:
        """What is being settled ends first."""
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._store.close()

    @asynccontextmanager
    async def spending(self, key: Key, tab: Tab, tokens: int) -> AsyncGenerator[Spent]:
        """Around a consult for `tokens`. Raises `OverLimit`."""
        if 0 < key.tokens_per_day < tokens:
            told = f"The key may write {key.tokens_per_day} tokens a day, not {tokens} at once."
            raise OverLimit("rejected", told)
        ids = tab.taken()
        day = await self._reserve(key, Cost(1, ids, tokens))
        spent = Spent()
        try:
            yield spent
        except (asyncio.CancelledError, TimeoutError):
            # What the engine wrote until then nobody knows; it counts as work, not as tokens.
            spent.computed += ids + tokens if spent.asked else 0
            raise
        finally:
            more = max(0, spent.computed - ids)
            if key.tokens_per_day or (more and key.ids_per_second):
                work = self._settle(key, day, tokens - spent.tokens, more)
                await asyncio.shield(self._begin(work))

    async def reserve(self, key: Key, tokens: int) -> int:
        """Take `tokens` of the day before a cloud is asked for them. Raises `OverLimit`.

        Returns the day, for `give_back`. What is never given back stays charged.
        """
        return await self._reserve(key, Cost(0, 0, tokens)) if key.tokens_per_day else 0

    async def give_back(self, key: Key, day: int, unused: int) -> None:
        """Give back what was reserved and not written; less than 0 where more was written."""
        if key.tokens_per_day and unused:
            await asyncio.shield(self._begin(self._settle(key, day, unused, 0)))

    async def may_warm(self, key: Key, tab: Tab) -> bool:
        """Whether pushed ids may be computed: the key could make a consult now."""
        try:
            return not (await self._take(key, Cost(0, tab.taken(), 0))).wait
        except LimitsDown:
            return False

    async def charge(self, key: Key, tab: Tab) -> float:
        """Charge what is on the tab; seconds until the key owes nothing."""
        ids = tab.taken()
        if not key.ids_per_second:
            return 0.0
        return await asyncio.shield(self._begin(self._settle(key, 0, 0, ids)))

    async def pay(self, key: Key, tab: Tab) -> None:
        """Charge what is on the tab, and wait until the key owes nothing."""
        while wait := await self.charge(key, tab):
            await asyncio.sleep(wait)

    async def _reserve(self, key: Key, cost: Cost) -> int:
        taking = self._begin(self._take(key, cost))
        try:
            granted = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._begin(self._undo(key, cost, taking))
            raise
        except LimitsDown as error:
            told = "The server cannot count what the key uses now; try again later."
            raise OverLimit("unavailable", told, DOWN_SECONDS) from error
        if granted.wait:
            raise OverLimit("unavailable", _TOLD[granted.short], granted.wait)
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
        """Work that goes on when who asked for it is gone."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task
