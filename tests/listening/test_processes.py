"""Both servers as processes: floods under few open files, what they say, how they end."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from edgewise.cloud.registry import engine_at
from edgewise.wire.protocol import PATH
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.processes import server
from tests.programs import python, run

pytestmark = pytest.mark.deep
SERVE = ("serve", "--threads", "1", "--slots", "1")
ASK = (
    b'{"model": "edgewise:edge", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}'
)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    made = ScriptedEngine()
    yield made
    made.close()


def flood(port: int, count: int, begun: bytes) -> ExitStack:
    """Connections that say no more than `begun`."""
    stack = ExitStack()
    for _ in range(count):
        peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        with contextlib.suppress(OSError):
            peer.sendall(begun)
    return stack


@pytest.mark.parametrize("command", ["gateway", "serve"])
def test_silent_connections_keep_nobody_out(command: str, engine: ScriptedEngine) -> None:
    """With 256 open files: never one too many, and few lines about it."""
    words = ("--engine", engine.url, "--concurrency", "8") if command == "gateway" else SERVE[1:]
    with server(command, *words, files=256) as process:
        for begun in (b"", b"GET / HTTP/1.1\r\n", b"\x00garbage\r\n\r\n", b"POST / HTTP/1.1\r\n"):
            with flood(process.port, 300, begun):
                assert [process.status("/health") for _ in range(5)] == [200] * 5
        process.drain()
        assert process.ended() == 0
        told = process.told()
        assert "Too many open files" not in told
        assert len(told) < 20_000


def test_every_line_of_a_gateway_is_json() -> None:
    """After floods, garbage, an engine that fails, wrong keys, and SIGTERM."""
    upgrade = b"POST %b HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    with (
        closing(ScriptedEngine()) as engine,
        server("gateway", "--engine", engine.url, "--log-level", "debug") as process,
    ):
        for begun in (b"", b"\x16\x03\x01garbage", b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000):
            flood(process.port, 50, begun).close()
        flood(process.port, 5, upgrade % PATH.encode() + b"Connection: Upgrade\r\n\r\n").close()
        engine.stop()
        while "engine not used" not in process.told():
            assert process.status("/health") == 200
        assert process.status("/ready") == 503
        process.drain()
        assert process.ended() == 0
        lines = [json.loads(line) for line in process.told().splitlines()]
    assert {"listening", "started", "engine not used"} <= {line["event"] for line in lines}
    assert all({"event", "level", "timestamp"} <= set(line) for line in lines)


PAGES = ("http://evil.example", "null", "http://localhost:1")


def test_a_page_cannot_use_a_gateway_without_keys() -> None:
    """Nor by a name that was made to point here; and the bundled engine writes no line but JSON."""
    with server("gateway", "--engine", "bundled") as gateway:
        for path in ("/health", "/ready", "/metrics", "/v1/models", PATH):
            own = 200 if path != PATH else 404
            assert gateway.status(path) == own
            assert gateway.status(path, Origin=gateway.url) == own
            assert [gateway.status(path, Origin=page) for page in PAGES] == [403] * 3
            assert gateway.status(path, Host=f"evil.example:{gateway.port}") == 400
        gateway.drain(signal.SIGINT)
        assert gateway.ended() == 0
        assert all(json.loads(line)["event"] for line in gateway.told().splitlines())


def test_a_page_cannot_use_serve() -> None:
    """What a browser lets any page send without asking first: plain text, to an address."""
    with server(*SERVE) as served:

        def ask(kind: str = "application/json", **headers: str) -> int:
            return served.status("/v1/chat/completions", ASK, Content_Type=kind, **headers)

        assert ask() == 200
        assert ask(Origin=served.url) == 200
        for kind in ("text/plain", "application/json"):
            assert [ask(kind, Origin=page) for page in PAGES] == [403] * 3
        # Without an origin it is no page; what it sends must be said to be JSON all the same.
        assert ask("text/plain") == 400
        assert ask(Host="evil.example") == 400


def test_the_other_version_of_the_internet(engine: ScriptedEngine) -> None:
    """A device finds what listens there, which refuses a request to another name."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    known = {"gateway": ("gateway", "--engine", engine.url), "edgewise": SERVE}
    for name, words in known.items():
        with server(*words, "--host", "::1", host="[::1]") as process:
            assert asyncio.run(engine_at(process.url)) == name
            assert process.status("/health") == 200
            assert process.status("/health", Host="evil.example") == 400
            assert process.url in process.told()


def test_a_taken_port_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words in (("gateway", "--engine", "bundled"), ("serve",)):
            done = python("-m", "edgewise", *words, "--port", port, code=2)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert f"127.0.0.1:{port}" in done.stderr


def test_few_open_files_are_a_sentence() -> None:
    command = ["bash", "-c", 'ulimit -n 128; exec "$@"', "bash", sys.executable, "-m", "edgewise"]
    words = ("gateway", "--engine", "bundled", "--port", "0")
    done = run(*command, *words, code=2)
    assert done.stderr.count("\n") == 1, done.stderr
    assert "ulimit -n" in done.stderr
