"""Limits hold whatever happens: in SQLite and in a real Redis, over crashes, clocks and crowds."""

import asyncio
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from structlog.testing import LogCapture

from edgewise.errors import UsageError
from edgewise.keys.keys import ANYBODY, Key
from edgewise.keys.limit_stores import BUSY_SECONDS, RedisLimits, SqliteLimits, limits_at
from edgewise.keys.limits import (
    DAY_SECONDS,
    MOST_DEBT,
    Cost,
    KeyLimits,
    LimitsDown,
    LimitStore,
    OverLimit,
    Unbilled,
)
from tests.llama_server_process import free_port

pytestmark = pytest.mark.anyio

NOON = 20_000.5 * DAY_SECONDS

_T = TypeVar("_T")


def key(name: str = "k", **limits: float) -> Key:
    without: dict[str, Any] = {"asks_per_second": 0.0, "ids_per_second": 0.0}
    return Key(name=name, sha256="", created="", **{**without, **limits})


class Clock:
    """Seconds since 1970, as a test sets them."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    if shutil.which("redis-server") is None:
        if os.environ.get("TEST_SERVERS") == "required":
            pytest.fail("redis-server is not installed")
        pytest.skip("redis-server is not installed")
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.02)


Store = Callable[[], LimitStore]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.deep)])
def store(clock: Clock, tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    """Makes stores that share what they keep."""
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        return lambda: RedisLimits(url, clock=clock)
    return lambda: SqliteLimits(tmp_path / "limits", clock=clock)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A key of each test's own: a Redis is shared by all of them."""
    return f"key {zlib.crc32(request.node.nodeid.encode())}"


@pytest.fixture
async def kept(store: Store, anyio_backend: str) -> AsyncIterator[LimitStore]:
    """One of them, open."""
    made = store()
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def limits(store: Store, anyio_backend: str) -> AsyncIterator[KeyLimits]:
    """Limits in one of them."""
    made = KeyLimits(store())
    await made.open()
    yield made
    await made.close()


def run(made: LimitStore, work: Callable[[LimitStore], Awaitable[_T]]) -> _T:
    async def all_of_it() -> _T:
        await made.open()
        try:
            return await work(made)
        finally:
            await made.close()

    return asyncio.run(all_of_it())


ONE = Cost(1, 0, 0)


async def test_a_rate_is_held(kept: LimitStore, clock: Clock, name: str) -> None:
    limited = key(name, asks_per_second=5.0)

    at_once = [await kept.take(limited, ONE) for _ in range(15)]
    assert [granted.short for granted in at_once] == [""] * 10 + ["asks"] * 5
    assert at_once[-1].wait == pytest.approx(0.2, abs=0.001)
    clock.now += at_once[-1].wait
    assert not (await kept.take(limited, ONE)).wait
    assert (await kept.take(limited, ONE)).wait
    clock.now += 3600
    later = [await kept.take(limited, ONE) for _ in range(15)]
    assert sum(not granted.wait for granted in later) == 10


async def test_ids_are_charged_and_owed(kept: LimitStore, clock: Clock, name: str) -> None:
    limited = key(name, ids_per_second=100.0)

    assert not (await kept.take(limited, Cost(1, 2000, 0))).wait
    refused = await kept.take(limited, ONE)
    assert (refused.short, round(refused.wait)) == ("ids", 10)
    clock.now += 10.1
    assert not (await kept.take(limited, ONE)).wait
    owed = await kept.settle(limited, 0, unused=0, ids=10**9)
    assert owed == pytest.approx(MOST_DEBT / 100, rel=0.01)


async def test_a_days_tokens_are_a_promise(kept: LimitStore, clock: Clock, name: str) -> None:
    thrifty = key(name, tokens_per_day=10)

    first = await kept.take(thrifty, Cost(1, 0, 8))
    assert (first.wait, first.day) == (0, 20_000)
    refused = await kept.take(thrifty, Cost(1, 0, 3))
    assert (refused.short, refused.wait) == ("tokens", DAY_SECONDS / 2)
    await kept.settle(thrifty, first.day, unused=6, ids=0)
    assert not (await kept.take(thrifty, Cost(1, 0, 8))).wait
    assert (await kept.take(thrifty, Cost(1, 0, 1))).wait
    clock.now += DAY_SECONDS / 2
    assert not (await kept.take(thrifty, Cost(1, 0, 10))).wait


async def test_midnight_comes_once(kept: LimitStore, clock: Clock, name: str) -> None:
    """What was reserved before it is given back to its own day; a clock that goes back, too."""
    thrifty = key(name, tokens_per_day=10)

    before = await kept.take(thrifty, Cost(1, 0, 10))
    clock.now += DAY_SECONDS
    after = await kept.take(thrifty, Cost(1, 0, 10))
    await kept.settle(thrifty, before.day, unused=10, ids=0)
    assert (await kept.take(thrifty, Cost(1, 0, 1))).wait
    clock.now -= DAY_SECONDS
    assert not (await kept.take(thrifty, Cost(1, 0, 10))).wait
    assert (await kept.take(thrifty, Cost(1, 0, 1))).wait
    clock.now += DAY_SECONDS
    assert (await kept.take(thrifty, Cost(1, 0, 1))).wait
    await kept.settle(thrifty, after.day, unused=1, ids=0)
    assert not (await kept.take(thrifty, Cost(1, 0, 1))).wait


async def test_a_clock_that_goes_back_locks_nobody_out(
    kept: LimitStore, clock: Clock, name: str
) -> None:
    limited = key(name, asks_per_second=2.0, ids_per_second=1000.0)

    assert not (await kept.take(limited, Cost(1, 100, 0))).wait
    clock.now -= 86_400 * 365
    waits = [(await kept.take(limited, ONE)).wait for _ in range(2)]
    assert max(waits) <= MOST_DEBT / 1000 + 11


def test_keys_are_counted_apart_and_stores_together(store: Store, name: str) -> None:
    thrifty, other = key(name, tokens_per_day=10), key(name + "2", tokens_per_day=10)

    async def crowd() -> list[int]:
        stores = [store() for _ in range(4)]
        for one in stores:
            await one.open()
        takes = [one.take(thrifty, Cost(1, 0, 1)) for one in stores for _ in range(10)]
        granted = sum(not one.wait for one in await asyncio.gather(*takes))
        fives = [await one.take(other, Cost(1, 0, 5)) for one in stores]
        others = sum(not one.wait for one in fives)
        for one in stores:
            await one.close()
        return [granted, others]

    assert asyncio.run(crowd()) == [10, 2]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "done", "failed", "cancelled", "killed", "day on", "day back"]),
        st.integers(0, 1),
        st.integers(1, 12),
    ),
    max_size=40,
)
QUOTA = 20


async def written_by(
    steps: list[tuple[str, int, int]], stores: list[LimitStore], clock: Clock
) -> dict[int, int]:
    """Tokens written a day, where two gateways do as `steps` say."""
    limited, written, flying = key(f"k{time.monotonic_ns()}", tokens_per_day=QUOTA), {}, []
    for one in stores:
        await one.open()
    for what, gateway, n in steps:
        if what == "ask":
            granted = await stores[gateway].take(limited, Cost(1, 0, n))
            if not granted.wait:
                flying.append((gateway, granted.day, n))
        elif what == "day on":
            clock.now += DAY_SECONDS
        elif what == "day back":
            clock.now -= DAY_SECONDS
        elif what == "killed":
            # What it had in flight was perhaps written, and nobody gives anything back.
            for _, day, reserved in [one for one in flying if one[0] == gateway]:
                written[day] = written.get(day, 0) + reserved
            flying = [one for one in flying if one[0] != gateway]
        elif flying:
            gateway, day, reserved = flying.pop(n % len(flying))
            tokens = min(n, reserved) if what == "done" else 0
            written[day] = written.get(day, 0) + tokens
            await stores[gateway].settle(limited, day, unused=reserved - tokens, ids=0)
    for _, day, reserved in flying:
        written[day] = written.get(day, 0) + reserved
    for one in stores:
        await one.close()
    return written


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("redis", marks=pytest.mark.deep)])
@given(steps=STEPS)
def test_no_order_of_things_writes_more_than_the_quota(
    kind: str,
    steps: list[tuple[str, int, int]],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    clock = Clock()
    if kind == "redis":
        url = request.getfixturevalue("redis_url")
        stores: list[LimitStore] = [RedisLimits(url, clock=clock) for _ in range(2)]
    else:
        path = tmp_path_factory.mktemp("quota") / "limits"
        stores = [SqliteLimits(path, clock=clock) for _ in range(2)]
    written = asyncio.run(written_by(steps, stores, clock))
    assert max(written.values(), default=0) <= QUOTA


def spend(made: LimitStore, work: Callable[[KeyLimits], Awaitable[_T]]) -> _T:
    async def all_of_it() -> _T:
        limits = KeyLimits(made)
        await limits.open()
        try:
            return await work(limits)
        finally:
            await limits.close()

    return asyncio.run(all_of_it())


async def consult(limits: KeyLimits, limited: Key, n: int, written: int | Exception) -> None:
    async with limits.spending(limited, Unbilled(), n) as spent:
        await asyncio.sleep(0)
        if isinstance(written, Exception):
            raise written
        spent.tokens = written


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
    with pytest.raises(OverLimit, match="tokens") as refused:
        await consult(limits, limited, 1, 1)
    assert refused.value.reason == "unavailable"
    assert (refused.value.retry_after or 0) > 1


@pytest.mark.parametrize("error", [TimeoutError, asyncio.CancelledError])
@pytest.mark.parametrize("rate", [10.0, 0.0], ids=["as ids", "as tokens"])
async def test_work_for_nothing_is_charged(
    limits: KeyLimits, clock: Clock, name: str, rate: float, error: type[BaseException]
) -> None:
    """Else a key could let an engine write, and give up each time at the last moment."""
    limited = key(name, ids_per_second=rate, tokens_per_day=5000)

    async def gives_up() -> None:
        async with limits.spending(limited, Unbilled(), 4000) as spent:
            spent.asked = True
            raise error

    with pytest.raises(error):
        await gives_up()
    with pytest.raises(OverLimit, match="ids" if rate else "tokens"):
        await consult(limits, limited, 1001, 1)
    if rate:
        clock.now += 500
        await consult(limits, limited, 5000, 1)
    else:
        await consult(limits, limited, 1000, 1000)


def test_prompt_ids_that_were_computed_again_are_charged() -> None:
    limited, clock = key(ids_per_second=10.0), Clock()

    async def work(limits: KeyLimits) -> None:
        async with limits.spending(limited, Unbilled(), 1) as spent:
            spent.computed = 5000
        with pytest.raises(OverLimit, match="ids"):
            await consult(limits, limited, 1, 1)

    spend(SqliteLimits(None, clock=clock), work)


def test_without_limits_nothing_is_asked() -> None:
    class Broken(SqliteLimits):
        async def take(self, key: Key, cost: Cost) -> Any:
            raise AssertionError("asked")

    async def work(limits: KeyLimits) -> None:
        unbilled = Unbilled()
        unbilled.ids = 10**9
        await consult(limits, ANYBODY, 4096, 4096)
        assert await limits.may_warm(ANYBODY, unbilled)

    spend(Broken(None), work)


@pytest.fixture
def told() -> Iterator[LogCapture]:
    capture = LogCapture()
    structlog.configure(processors=[capture])
    yield capture
    structlog.reset_defaults()


class Failing(SqliteLimits):
    """Fails as long as it is told to."""

    down = True

    async def take(self, key: Key, cost: Cost) -> Any:
        if self.down:
            raise LimitsDown("gone")
        return await super().take(key, cost)


def test_nothing_is_granted_while_the_store_is_down(
    told: LogCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.keys.limits.DOWN_SECONDS", 0.0)
    failing, limited = Failing(None), key(asks_per_second=100.0)

    async def work(limits: KeyLimits) -> None:
        for _ in range(5):
            with pytest.raises(OverLimit, match="count") as refused:
                await consult(limits, limited, 1, 1)
            assert refused.value.reason == "unavailable"
            assert refused.value.retry_after is not None
            assert not await limits.may_warm(limited, Unbilled())
        failing.down = False
        await consult(limits, limited, 1, 1)

    spend(failing, work)
    assert [entry["event"].split(":")[0] for entry in told.entries] == [
        "limits kept",
        "limits not kept",
        "limits kept again",
    ]


@pytest.mark.deep
def test_a_redis_that_goes_and_comes_back(
    told: LogCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("redis-server") is None and os.environ.get("TEST_SERVERS") != "required":
        pytest.skip("redis-server is not installed")
    monkeypatch.setattr("edgewise.keys.limits.DOWN_SECONDS", 0.0)
    port, limited = free_port(), key(asks_per_second=1000.0, tokens_per_day=1000)
    options = ["--bind", "127.0.0.1", "--save", "", "--requirepass", "s3cret"]

    def start() -> "subprocess.Popen[bytes]":
        server = subprocess.Popen(
            ["redis-server", "--port", str(port), *options], stdout=subprocess.DEVNULL
        )
        _wait_for(port)
        return server

    async def work(limits: KeyLimits) -> None:
        with pytest.raises(OverLimit):  # it is not there yet
            await consult(limits, limited, 1, 1)
        server = start()
        try:
            await consult(limits, limited, 1, 1)
            async with limits.spending(limited, Unbilled(), 1):
                server.kill()
                server.wait()
            with pytest.raises(OverLimit):
                await consult(limits, limited, 1, 1)
            server = start()
            await consult(limits, limited, 1, 1)
        finally:
            server.kill()
            server.wait()

    spend(RedisLimits(f"redis://:s3cret@127.0.0.1:{port}"), work)
    assert "s3cret" not in str(told.entries)
    assert f"127.0.0.1:{port}" in str(told.entries)


@pytest.mark.deep
def test_a_wrong_password_is_a_sentence(redis_url: str) -> None:
    async def work(limits: KeyLimits) -> None:
        raise AssertionError("opened")

    with pytest.raises(UsageError, match="password") as refused:
        spend(RedisLimits(redis_url.replace("//", "//someone:s3cret@")), work)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("value", ['{"days": {"20000": -5000}}', "NaN", "", "[]", '{"ids": "x"}'])
def test_a_file_that_holds_nonsense_grants_nothing(tmp_path: Path, value: str) -> None:
    path, limited = tmp_path / "limits", key(tokens_per_day=5)

    async def work(limits: LimitStore) -> None:
        await limits.take(limited, ONE)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("UPDATE used SET value = ?", (value,))
        with pytest.raises(LimitsDown):
            await limits.take(limited, ONE)

    run(SqliteLimits(path), work)


@pytest.mark.deep
@pytest.mark.parametrize("stored", [b'{"asks": NaN}', b"hello", {"a": "hash"}])
def test_a_redis_that_holds_nonsense_grants_nothing(
    redis_url: str, stored: bytes | dict[str, str]
) -> None:
    limited = key(tokens_per_day=5)
    with Redis.from_url(redis_url) as other:
        at = f"edgewise:used:{limited.name}"
        other.delete(at)
        other.hset(at, mapping=stored) if isinstance(stored, dict) else other.set(at, stored)

    async def work(limits: LimitStore) -> None:
        with pytest.raises(LimitsDown):
            await limits.take(limited, ONE)

    run(RedisLimits(redis_url), work)


def test_where_limits_are_kept(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"

    async def used(where: str | None) -> None:
        limits = limits_at(where, keys)
        await limits.open()
        await limits.close()

    asyncio.run(used("memory"))
    assert not list(tmp_path.iterdir())
    asyncio.run(used(None))
    assert (tmp_path / "keys.json.limits").stat().st_mode & 0o077 == 0
    asyncio.run(used(str(tmp_path / "elsewhere")))
    assert (tmp_path / "elsewhere").exists()


def test_a_file_that_another_holds_is_down_and_then_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.keys.limit_stores.BUSY_SECONDS", 0.05)
    path, limited = tmp_path / "limits", key(tokens_per_day=5)

    async def work(limits: LimitStore) -> None:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(LimitsDown, match="locked"):
            await limits.take(limited, ONE)
        holder.execute("ROLLBACK")
        holder.close()
        assert not (await limits.take(limited, ONE)).wait

    run(SqliteLimits(path), work)


FULL = """
import asyncio, resource, sys
from pathlib import Path
from edgewise.keys.keys import Key
from edgewise.keys.limits import Cost, LimitsDown
from edgewise.keys.limit_stores import BUSY_SECONDS, SqliteLimits

async def work():
    store, key = SqliteLimits(Path(sys.argv[1])), Key(name="a", sha256="0" * 64, created="")
    await store.open()
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, most))
    try:
        for _ in range(100):
            await store.take(key, Cost(1, 1, 1))
    except LimitsDown as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    print((await store.take(key, Cost(1, 1, 1))).day)
    await store.close()

asyncio.run(work())
"""


def test_a_file_that_cannot_grow_is_told_for_its_reason_and_used_again(tmp_path: Path) -> None:
    """Found by an attack: a full disk was told as "cannot rollback"."""
    command = [sys.executable, "-c", FULL, str(tmp_path / "used")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told, day = done.stdout.splitlines()
    assert "rollback" not in told
    assert "disk" in told
    assert day.isdigit()


def test_a_gateway_waits_for_one_that_begins_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    beside = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    beside.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(1.5 * BUSY_SECONDS, beside.close)
    release.start()

    async def opened() -> None:
        store = SqliteLimits(path)
        await store.open()
        await store.close()

    asyncio.run(opened())
    release.join()
    with closing(sqlite3.connect(path)) as made:
        assert made.execute("SELECT count(*) FROM used").fetchone() == (0,)
