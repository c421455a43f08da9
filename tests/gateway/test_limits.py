"""Limits hold whatever happens: over crashes, clocks and crowds."""

import asyncio
import sqlite3
import threading
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import UsageError
from edgewise.keys.keys import ANYBODY, Key
from edgewise.keys.limit_stores import BUSY_SECONDS, SqliteLimits, limits_at
from edgewise.keys.limits import (
    DAY_SECONDS,
    MOST_DEBT,
    KeyLimits,
    LimitsDown,
    LimitStore,
    OverLimit,
)
from tests.doubles.clock import Clock
from tests.gateway.conftest import Told
from tests.gateway.doubles import FailingLimits

pytestmark = pytest.mark.anyio

NOON = 20_000.5 * DAY_SECONDS


def key(name: str = "k", **limits: float) -> Key:
    without: dict[str, Any] = {"consults_per_second": 0.0, "ids_per_second": 0.0}
    return Key(name=name, sha256="", created="", **{**without, **limits})


Store = Callable[[], LimitStore]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Makes stores that share what they keep."""
    return lambda: SqliteLimits(tmp_path / "limits")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A key of each test's own: a store may be shared by all of them."""
    return f"key {zlib.crc32(request.node.nodeid.encode())}"


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@asynccontextmanager
async def limits_in(made: LimitStore, clock: Clock | None = None) -> AsyncIterator[KeyLimits]:
    clocks: dict[str, Any] = {"clock": clock, "calendar": clock} if clock else {}
    async with opened(KeyLimits(made, **clocks)) as limits:
        yield limits


@pytest.fixture
async def limits(store: Store, clock: Clock, anyio_backend: str) -> AsyncIterator[KeyLimits]:
    """Limits in one of them."""
    async with limits_in(store(), clock) as made:
        yield made


async def consult(
    limits: KeyLimits,
    limited: Key,
    n: int = 0,
    written: int | BaseException = 0,
    *,
    ids: int = 0,
    asked: bool = False,
) -> None:
    async with limits.spending(limited, n, ids=ids) as spent:
        spent.asked = asked
        await asyncio.sleep(0)
        if isinstance(written, BaseException):
            raise written
        spent.tokens = written


async def waits(limits: KeyLimits, limited: Key, n: int = 0) -> float:
    """Seconds until a consult of nothing is granted."""
    try:
        await consult(limits, limited, n)
    except OverLimit as over:
        return over.retry_after or 0.0
    return 0.0


async def test_a_rate_is_held(clock: Clock) -> None:
    """Prefetches have one too: each is a request to the engine, and uses up no consults."""
    limited = key(consults_per_second=5.0)
    async with limits_in(SqliteLimits(None), clock) as limits:
        at_once = [await waits(limits, limited) for _ in range(15)]
        assert at_once == [0.0] * 10 + [pytest.approx(0.2, abs=0.001)] * 5
        clock.now += at_once[-1]
        assert not await waits(limits, limited)
        assert await waits(limits, limited)
        clock.now += 3600
        for fresh in (10, 5):
            made = [await limits.may_prefetch(limited, 0) for _ in range(15)]
            assert made == [True] * fresh + [False] * (15 - fresh)
            assert [await waits(limits, limited) for _ in range(15)].count(0.0) == fresh
            clock.now += 1.0


async def test_ids_are_charged_and_owed(clock: Clock) -> None:
    limited = key(ids_per_second=100.0)
    async with limits_in(SqliteLimits(None), clock) as limits:
        await consult(limits, limited, ids=2000)
        assert await waits(limits, limited) == pytest.approx(10, abs=0.1)
        clock.now += 10.1
        async with limits.spending(limited, 1, ids=10) as spent:
            spent.computed = 5000
        assert await waits(limits, limited) == pytest.approx(49, abs=2)
        assert limits.charge(limited, 10**9) == pytest.approx(MOST_DEBT / 100, rel=0.01)
        assert not await limits.may_prefetch(limited, 1)


async def test_a_days_tokens_are_a_promise(limits: KeyLimits, clock: Clock, name: str) -> None:
    """They are given back to their own day, also by a clock that goes back."""
    limited = key(name, tokens_per_day=10)
    async with limits.spending(limited, 8) as spent:
        assert await waits(limits, limited, 3) == DAY_SECONDS / 2
        spent.tokens = 2
        clock.now += DAY_SECONDS
        await consult(limits, limited, 10, 10)
    assert await waits(limits, limited)
    clock.now -= DAY_SECONDS
    await consult(limits, limited, 8, 8)
    assert await waits(limits, limited)
    with pytest.raises(OverLimit) as refused:
        await consult(limits, limited, 11)
    assert refused.value.reason == "rejected"


async def test_keys_are_counted_apart_and_stores_together(store: Store, name: str) -> None:
    async with AsyncExitStack() as stack:
        several = [await stack.enter_async_context(limits_in(store())) for _ in range(4)]

        async def granted(limited: Key, tokens: int) -> int:
            every = [consult(one, limited, tokens, tokens) for one in several for _ in range(10)]
            done = await asyncio.gather(*every, return_exceptions=True)
            return sum(not isinstance(one, OverLimit) for one in done)

        assert await granted(key(name, tokens_per_day=10), 1) == 10
        assert await granted(key(name + "2", tokens_per_day=10), 5) == 2


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "done", "failed", "killed", "day on", "day back"]),
        st.integers(0, 1),
        st.integers(1, 12),
    ),
    max_size=40,
)
QUOTA = 20


async def written_by(steps: list[tuple[str, int, int]], stores: list[LimitStore]) -> dict[int, int]:
    """Tokens written a day, where two gateways do as `steps` say."""
    limited, clock, written, flying = f"k{time.monotonic_ns()}", 20_000, Counter[int](), []
    for one in stores:
        await one.open()
    for what, gateway, n in steps:
        if what == "ask":
            if await stores[gateway].add(limited, clock, n, QUOTA):
                flying.append((gateway, clock, n))
        elif what.startswith("day"):
            clock += 1 if what == "day on" else -1
        elif what == "killed":
            # What it had in flight was perhaps written, and nobody gives anything back.
            for _, day, reserved in [one for one in flying if one[0] == gateway]:
                written[day] += reserved
            flying = [one for one in flying if one[0] != gateway]
        elif flying:
            gateway, day, reserved = flying.pop(n % len(flying))
            tokens = min(n, reserved) if what == "done" else 0
            written[day] += tokens
            await stores[gateway].add(limited, day, tokens - reserved)
    for _, day, reserved in flying:
        written[day] += reserved
    for one in stores:
        await one.close()
    return written


@given(steps=STEPS)
def test_no_order_of_things_writes_more_than_the_quota(
    steps: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("quota") / "limits"
    stores: list[LimitStore] = [SqliteLimits(path) for _ in range(2)]
    written = asyncio.run(written_by(steps, stores))
    assert max(written.values(), default=0) <= QUOTA


async def test_what_was_not_written_is_given_back(limits: KeyLimits, name: str) -> None:
    limited = key(name, tokens_per_day=20)
    await consult(limits, limited, 20, 5)
    for error in (TimeoutError(), RuntimeError("a bug")):
        with pytest.raises(type(error)):
            await consult(limits, limited, 15, error)
    for pause in (0.0, 0.001, 0.01):
        asking = asyncio.create_task(consult(limits, limited, 15, 0))
        await asyncio.sleep(pause)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(0.05)
    await consult(limits, limited, 15, 15)
    assert await waits(limits, limited, 1) > 1


@pytest.mark.parametrize("error", [TimeoutError, asyncio.CancelledError])
@pytest.mark.parametrize("rate", [10.0, 0.0], ids=["as ids", "as tokens"])
async def test_lost_work_is_charged(clock: Clock, rate: float, error: type[BaseException]) -> None:
    """Else a key could let an engine write, and give up each time at the last moment."""
    limited = key(ids_per_second=rate, tokens_per_day=5000)
    async with limits_in(SqliteLimits(None), clock) as limits:
        with pytest.raises(error):
            await consult(limits, limited, 4000, error(), asked=True)
        assert await waits(limits, limited, 1001)
        if rate:
            clock.now += 500
        await consult(limits, limited, 5000 if rate else 1000, 1)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that failed is asked again."""
    monkeypatch.setattr("edgewise.keys.limits.DOWN_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_nothing_is_granted_while_the_store_is_down(told: Told) -> None:
    failing, limited = FailingLimits(), key(tokens_per_day=100)
    async with limits_in(failing) as limits:
        # But where there are no limits nothing is asked.
        await consult(limits, ANYBODY, 4096, 4096, ids=10**9)
        assert await limits.may_prefetch(ANYBODY, 10**9)
        for _ in range(5):
            with pytest.raises(OverLimit):
                await consult(limits, limited, 1)
            assert not await limits.may_prefetch(limited, 0)
        failing.down = False
        await consult(limits, limited, 1, 1)
    events = [entry["event"].split(":")[0] for entry in told]
    assert events == ["limits kept", "limits not kept", "limits kept again"]


async def test_where_limits_are_kept(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    async with opened(limits_at("memory", keys)):
        assert not list(tmp_path.iterdir())
    async with opened(limits_at(None, keys)):
        assert (tmp_path / "keys.json.limits").stat().st_mode & 0o077 == 0
    async with opened(limits_at(str(tmp_path / "elsewhere"), keys)):
        assert (tmp_path / "elsewhere").exists()
    with pytest.raises(UsageError):
        limits_at("http://a.host", keys)


@asynccontextmanager
async def opened(made: LimitStore | KeyLimits) -> AsyncIterator[Any]:
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def test_a_held_or_broken_file_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.keys.limit_stores.BUSY_SECONDS", 0.05)
    path = tmp_path / "limits"
    async with opened(SqliteLimits(path)) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(LimitsDown, match="locked"):
                await store.add("k", 1, 1, 5)
            holder.execute("ROLLBACK")
            assert await store.add("k", 1, 5, 5)
            for value in (-5000, "NaN", None):
                with pytest.raises(sqlite3.IntegrityError):
                    holder.execute("UPDATE tokens SET used = ?", (value,))
            holder.execute("DROP TABLE tokens")
        with pytest.raises(LimitsDown):
            await store.add("k", 1, 1, 5)


async def test_a_gateway_waits_for_one_that_begins_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    beside = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    beside.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(1.5 * BUSY_SECONDS, beside.close)
    release.start()
    async with opened(SqliteLimits(path)) as store:
        release.join()
        assert await store.add("k", 1, 1, 5)
