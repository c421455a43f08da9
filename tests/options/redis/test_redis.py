"""A real Redis as the store of limits: what holds in SQLite does here, and what only it may do."""

import asyncio
import os
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from redis import Redis

from edgewise.errors import UsageError
from edgewise.keys.limits import LimitsDown, OverLimit
from edgewise.options.redis.store import RedisLimits
from tests.gateway.conftest import Told, anyio_backend, told
from tests.gateway.processes import until
from tests.gateway.test_limits import (
    QUOTA,
    STEPS,
    Store,
    at_once,
    clock,
    consult,
    key,
    limits,
    limits_in,
    name,
    test_a_days_tokens_are_a_promise,
    test_keys_are_counted_apart_and_stores_together,
    test_what_was_not_written_is_given_back,
    written_by,
)
from tests.server_process import free_port

__all__ = [
    "anyio_backend",
    "at_once",
    "clock",
    "limits",
    "name",
    "test_a_days_tokens_are_a_promise",
    "test_keys_are_counted_apart_and_stores_together",
    "test_what_was_not_written_is_given_back",
    "told",
]

pytestmark = pytest.mark.anyio


def require_redis() -> None:
    """Skips without a Redis, unless servers are required: then starting it fails."""
    if shutil.which("redis-server") is None and os.environ.get("TEST_SERVERS") != "required":
        pytest.skip("redis-server is not installed")


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    require_redis()
    port = free_port()
    with redis_server(port):
        yield f"redis://127.0.0.1:{port}"


@contextmanager
def redis_server(port: int, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """It ends with the block."""
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", *options]

    def listens() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            until(listens, "redis")
            yield server
        finally:
            server.kill()


@pytest.mark.deep
async def test_a_cluster_counts_too(tmp_path: Path) -> None:
    """It runs a script on keys of one slot only."""
    require_redis()
    port = free_port()
    with (
        redis_server(port, "--cluster-enabled", "yes", "--dir", str(tmp_path)),
        Redis(port=port) as one,
    ):
        one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: b"cluster_state:ok" in one.execute_command("CLUSTER", "INFO"))
        made = RedisLimits(f"redis://127.0.0.1:{port}")
        assert [await made.add("key", 20_000, 5, 9) for _ in range(2)] == [True, False]
        await made.close()


@pytest.fixture
def store(redis_url: str) -> Store:
    """In place of SQLite's, for the tests of both."""
    return lambda: RedisLimits(redis_url)


@given(steps=STEPS)
def test_no_order_of_things_writes_more_than_the_quota(
    redis_url: str, steps: list[tuple[str, int, int]]
) -> None:
    written = asyncio.run(written_by(steps, [RedisLimits(redis_url) for _ in range(2)]))
    assert max(written.values(), default=0) <= QUOTA


@pytest.mark.deep
@pytest.mark.usefixtures("at_once")
async def test_a_redis_that_goes_and_comes_back(told: Told) -> None:
    require_redis()
    port, limited = free_port(), key(tokens_per_day=1000)
    async with limits_in(RedisLimits(f"redis://:s3cret@127.0.0.1:{port}")) as limits:
        with pytest.raises(OverLimit):  # it is not there yet
            await consult(limits, limited, 1, 1)
        with redis_server(port, "--requirepass", "s3cret") as server:
            await consult(limits, limited, 1, 1)
            async with limits.spending(limited, 1):
                server.kill()
                server.wait()
            with pytest.raises(OverLimit):
                await consult(limits, limited, 1, 1)
        with redis_server(port, "--requirepass", "s3cret"):
            await consult(limits, limited, 1, 1)
    assert "s3cret" not in str(told)
    assert f"127.0.0.1:{port}" in str(told)


@pytest.mark.deep
async def test_a_redis_that_stalls_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads what was sent when it goes on, so a second request would be added to the first."""
    require_redis()
    monkeypatch.setattr("edgewise.options.redis.store.ANSWER_SECONDS", 1.0)
    port = free_port()
    with redis_server(port) as server, Redis(port=port) as other:
        made = RedisLimits(f"redis://127.0.0.1:{port}")
        await made.add("stalled", 20_000, 5, 10)
        for tokens in (5, -5):
            server.send_signal(signal.SIGSTOP)
            asyncio.get_running_loop().call_later(1.5, server.send_signal, signal.SIGCONT)
            with pytest.raises(LimitsDown):
                await made.add("stalled", 20_000, tokens, 100)
            await asyncio.sleep(1.0)
            # Or not at all, where it never came to be sent.
            assert other.get("edgewise:tokens:20000:stalled") in (b"5", b"10")
        await made.close()


async def test_a_connection_that_redis_closed_is_no_failure(redis_url: str) -> None:
    made = RedisLimits(redis_url)
    with Redis.from_url(redis_url) as other:
        for used in (1, 2):
            other.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert await made.add("closed", 20_000, 1, 5)
            assert other.get("edgewise:tokens:20000:closed") == str(used).encode()
    await made.close()


async def test_a_request_whose_reply_is_lost_counts_once(redis_url: str, name: str) -> None:
    """Redis ran the script before the connection broke, and the client asks again."""
    lose: list[bool] = []

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with closing(sink), suppress(OSError):
            while data := await source.read(1 << 16):
                # The script alone has such replies.
                if lose and data in (b":0\r\n", b":1\r\n"):
                    lose.clear()
                    break
                sink.write(data)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replies, asked = await asyncio.open_connection(*redis_url[8:].split(":"))
        await asyncio.gather(pump(reader, asked), pump(replies, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    made = RedisLimits(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        with Redis.from_url(redis_url) as other:
            for tokens, granted, used in ((5, True, b"5"), (9, False, b"5"), (-3, True, b"2")):
                lose.append(True)
                assert await made.add(name, 20_000, tokens, 10) is granted
                assert (lose, other.get(f"edgewise:tokens:20000:{name}")) == ([], used)
        await made.close()


async def test_more_than_was_used_cannot_be_given_back(redis_url: str, name: str) -> None:
    made = RedisLimits(redis_url)
    for tokens, granted in ((3, True), (-5, True), (6, False), (5, True)):
        assert await made.add(name, 20_000, tokens, 5) is granted
    await made.close()


async def test_a_wrong_password_is_a_sentence(redis_url: str) -> None:
    made = RedisLimits(redis_url.replace("//", "//someone:s3cret@"))
    with pytest.raises(UsageError, match="password") as refused:
        await made.open()
    await made.close()
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("stored", [b"NaN", b"hello", {"a": "hash"}])
async def test_held_nonsense_grants_nothing(redis_url: str, stored: bytes | dict[str, str]) -> None:
    with Redis.from_url(redis_url) as other:
        at = "edgewise:tokens:20000:nonsense"
        other.delete(at)
        other.hset(at, mapping=stored) if isinstance(stored, dict) else other.set(at, stored)
    made = RedisLimits(redis_url)
    with pytest.raises(LimitsDown):
        await made.add("nonsense", 20_000, 1, 5)
    await made.close()


class _Lying(socketserver.BaseRequestHandler):
    """Replies to a script with the server's `lie`, and +OK to all else."""

    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            lies = b"EVALSHA" in data
            commands = len(re.findall(rb"^\*\d", data, re.MULTILINE))
            self.request.sendall(self.server.lie if lies else b"+OK\r\n" * commands)  # type: ignore[attr-defined]


NONSENSE = ["-", ":-1", ":2", "$2|no", "$1|0", "$1|1", "+QUEUED", "+OK", "*1|:1", "*0", "$-1", "?"]


@pytest.mark.parametrize("reply", [":1", ":0", *NONSENSE, "*1|" * 5000 + ":1"])
async def test_only_the_scripts_own_reply_is_a_grant(reply: str) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Lying) as server:
        server.daemon_threads = True
        server.lie = reply.replace("|", "\r\n").encode() + b"\r\n"  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        made = RedisLimits(f"redis://127.0.0.1:{server.server_address[1]}?protocol=2")
        try:
            if reply in (":0", ":1"):
                assert await made.add("key", 20_000, 1, 5) is (reply == ":1")
            else:
                with pytest.raises(LimitsDown):
                    await made.add("key", 20_000, 1, 5)
        finally:
            await made.close()
            server.shutdown()
