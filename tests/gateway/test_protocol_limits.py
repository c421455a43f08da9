"""What docs/protocol.md says of each limit is what a gateway does: reason, patience, close code."""

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from benchmarks.protocol_exchange import PAGE
from edgewise.completion import Completion
from edgewise.engines.base import NOBODY, Client
from edgewise.errors import CloudProtocolError, CloudRefused, CloudRejected, CloudUnavailable
from edgewise.events import Candidate
from edgewise.gateway import connection
from edgewise.gateway.connection import LARGE
from edgewise.keys import keys
from edgewise.keys.limit_stores import SqliteLimits
from edgewise.keys.limits import Cost, Granted, LimitsDown
from edgewise.sampling import Sampling
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.doubles import PlainEngine
from tests.gateway.plain_client import PlainClient, check
from tests.gateway.running import Running, gateway
from tests.llama_server_process import free_port

ENDINGS, REFUSALS = (
    PAGE.read_text(encoding="utf-8")
    .split("## What each limit gives")[1]
    .split("Consults: *failed*")
)

Said = tuple[str, int | None]
"""Reason and retry_after."""


def rows(table: str) -> dict[str, list[str]]:
    """Of a table of the page, by the first column."""
    lines = re.findall(r"^\| (.*) \|$", table.split("\n\nA device")[0], re.MULTILINE)
    cells = [re.split(r" ?\| ", line) for line in lines]
    return {first: rest for first, *rest in cells if first not in ("what", "---|---")}


class SlowEngine(PlainEngine):
    """Takes `seconds` for a consult."""

    seconds = 0.0

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        completion = await super().complete(ids, n, sampling, client)
        if client is not NOBODY:
            await asyncio.sleep(self.seconds)
        return completion


LIMITS = ("asks_per_second", "ids_per_second", "tokens_per_day", "sessions", "ids")


class Site:
    """A gateway over an engine that does as it is told, with one key."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self.file = folder / "keys.json"
        self.engine = SlowEngine()
        self.running: Running | None = None

    def serve(self, **options: Any) -> None:
        limits: dict[str, Any] = dict.fromkeys(LIMITS, 0)
        limits |= {name: options.pop(name) for name in LIMITS if name in options}
        self.secret = keys.add_key(self.file, "device", **limits)
        made = gateway([self.engine], keys=self.file, **options)
        self.running = self._stack.enter_context(made)

    def client(self) -> PlainClient:
        assert self.running is not None
        made = PlainClient(self.running.url, self.secret)
        return self._stack.enter_context(made)

    def opened(self) -> PlainClient:
        client = self.client()
        assert client.open()[0] == 16
        return client

    def hang(self) -> None:
        """The engine takes longer than anybody waits."""
        self.engine.seconds = 60.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


Ending = Callable[[Site], PlainClient]


def _silent(site: Site) -> PlainClient:
    site.serve()
    return site.client()


def _another_first(site: Site) -> PlainClient:
    site.serve()
    client = site.client()
    client.send([4, 1])
    return client


def _version(site: Site) -> PlainClient:
    site.serve()
    client = site.client()
    client.send([1, 2, "0" * 16])
    return client


def _vocabulary(site: Site) -> PlainClient:
    site.serve()
    client = site.client()
    client.send([1, 1, "0" * 16])
    return client


def _sessions(site: Site) -> PlainClient:
    site.serve(sessions=1)
    site.opened()
    client = site.client()
    client.send([1, 1, client.tokenizer])
    return client


def _room(site: Site) -> PlainClient:
    site.serve(most=1)
    site.opened()
    client = site.client()
    client.send([1, 1, client.tokenizer])
    return client


def _text(site: Site) -> PlainClient:
    site.serve()
    client = site.opened()
    client.socket.send("hello")
    return client


def _long_prefix(site: Site) -> PlainClient:
    site.serve()
    client = site.opened()
    client.push(0, [1] * 131_072)
    client.push(131_072, [1])
    return client


def _same_number(site: Site) -> PlainClient:
    site.serve()
    site.hang()
    client = site.opened()
    for _ in range(2):
        client.send([3, 1, 0, [72], check([72])])
    return client


def _frames(site: Site) -> PlainClient:
    site.serve()
    client = site.opened()
    for _ in range(3):
        client.send([4, 1])
    return client


def _large_first(site: Site) -> PlainClient:
    site.serve()
    client = site.client()
    client.send([1, 1, client.tokenizer, "", bytes(LARGE)])
    return client


def _out_of_force(site: Site) -> PlainClient:
    site.serve()
    site.hang()
    client = site.opened()
    client.send([3, 1, 0, [72], check([72])])
    wait(lambda: site.engine.asked == 1, 10)
    keys.revoke_key(site.file, "device")
    return client


def _too_many_ids(site: Site) -> PlainClient:
    site.serve(ids_per_second=1)
    client = site.opened()
    many = [1] * (LARGE + 1)
    client.push(0, many)
    client.push(0, many)
    return client


def _large(site: Site) -> PlainClient:
    site.serve()
    client = site.opened()
    client.socket.send(bytes((1 << 20) + 1))
    return client


ENDS: dict[str, Ending] = {
    "no open frame within 10 s": _silent,
    "the first frame is not *open*, or a second *open*": _another_first,
    "another version": _version,
    "another vocabulary": _vocabulary,
    "the key has all its sessions open": _sessions,
    "the gateway holds no more sessions": _room,
    "a text message, or a malformed frame": _text,
    "a prefix of more than 131,072 ids": _long_prefix,
    "an ask's number that is in flight": _same_number,
    "more than 2,000 frames a second since the connection was made, and 2,000 more": _frames,
    "the first frame has more than 16,384 bytes": _large_first,
    "the key is revoked or expired": _out_of_force,
    "a frame waits more than 10 s because the key has sent too many ids": _too_many_ids,
    "a message above 1,048,576 bytes": _large,
}


def test_every_row_has_its_test() -> None:
    assert set(rows(ENDINGS)) == set(ENDS)
    assert set(rows(REFUSALS)) == set(ASKS)


@pytest.mark.parametrize("what", ENDS)
def test_sessions_end_as_the_page_says(
    site: Site, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "OPEN_SECONDS", 0.2 if what.startswith("no open") else 10.0)
    monkeypatch.setattr(connection, "FRAMES_PER_SECOND", 2 if "frames a" in what else 2000)
    reason, patience, code = rows(ENDINGS)[what]
    if what.startswith("a frame waits"):
        assert int(patience) == 1000 * connection.PAUSE_SECONDS
        monkeypatch.setattr(connection, "PAUSE_SECONDS", 0.2)
        patience = "200"
    client = ENDS[what](site)
    if reason != "no frame":
        frame = client.receive()
        assert frame[:3] == [19, None, reason.strip("`")]
        assert frame[4] == (None if patience == "nil" else int(patience))
    assert client.code() == int(code)


def _waiting(site: Site) -> list[Any]:
    site.serve()
    site.hang()
    client = site.opened()
    for number in range(9):
        client.send([3, number, 0, [72], check([72])])
    return client.ask(9, 0, [72])


def _rate(site: Site) -> list[Any]:
    site.serve(asks_per_second=0.5)
    client = site.opened()
    assert client.ask(0, 0, [72])[0] == 17
    return client.ask(1, 0, [72])


def _ids(site: Site) -> list[Any]:
    site.serve(ids_per_second=1)
    client = site.opened()
    assert client.ask(0, 0, [72] * 100)[0] == 17
    return client.ask(1, 0, [72])


def _whole_day(site: Site) -> list[Any]:
    site.serve(tokens_per_day=10)
    return site.opened().ask(1, 0, [72], 11)


def _day(site: Site) -> list[Any]:
    site.serve(tokens_per_day=10)
    client = site.opened()
    assert client.ask(0, 0, [72])[0] == 17
    return client.ask(1, 0, [72], 10)


def _uncounted(site: Site) -> list[Any]:
    site.serve(tokens_per_day=10, limits=Down(None))
    return site.opened().ask(1, 0, [72])


class Down(SqliteLimits):
    """Lost what it counted in, since it was opened."""

    async def take(self, key: keys.Key, cost: Cost) -> Granted:
        raise LimitsDown("the disk is gone")


def _queue(site: Site) -> list[Any]:
    site.serve(concurrency=1, queue=0)
    site.hang()
    site.opened().send([3, 1, 0, [72], check([72])])
    wait(lambda: site.engine.asked == 1, 10)
    return site.opened().ask(1, 0, [72])


def _deadline(site: Site) -> list[Any]:
    site.serve()
    site.hang()
    return site.opened().ask(1, 0, [72], 1, 50)


def _no_ids(site: Site) -> list[Any]:
    site.serve()
    return site.opened().ask(1, 0, [])


def _sampling(site: Site) -> list[Any]:
    site.serve()
    return site.opened().ask(1, 0, [72], 1, 5000, 0, [-1.0, 0, 1.0, 0.0, 1])


def _engine(problem: Exception) -> Callable[[Site], list[Any]]:
    def ask(site: Site) -> list[Any]:
        def fail(ids: object, n: int) -> Completion:
            raise problem

        site.serve()
        site.engine.act = fail
        return site.opened().ask(1, 0, [72])

    return ask


ASKS: dict[str, Callable[[Site], list[Any]]] = {
    "more than 8 consults of the session wait": _waiting,
    "the key asks more often than it may (two seconds' asks may be saved up)": _rate,
    "more ids came from the key, or were computed for it, than it may have a second "
    "(ten seconds' may be saved up)": _ids,
    "n is above the key's daily tokens": _whole_day,
    "n is above what is left of the key's daily tokens": _day,
    "the gateway cannot count usage now": _uncounted,
    "the engine's queue is full": _queue,
    "the deadline passed": _deadline,
    "the prefix has no ids": _no_ids,
    "sampling out of range": _sampling,
    "the engine is down or not ready": _engine(CloudUnavailable("down")),
    "the engine declines the request, for instance for its length": _engine(CloudRejected("no")),
    "the engine refuses the gateway's own key": _engine(CloudRefused("no")),
    "the engine's reply is malformed or out of bounds": _engine(
        CloudProtocolError("not what it promises")
    ),
}


@pytest.mark.parametrize("what", ASKS)
def test_consults_fail_as_the_page_says(site: Site, what: str) -> None:
    reason, patience = rows(REFUSALS)[what]
    frame = ASKS[what](site)
    assert [frame[0], frame[2]] == [19, reason.strip("`")]
    if patience == "nil":
        assert frame[4] is None
    elif patience.isdigit():
        assert frame[4] == int(patience)
    else:
        assert 0 < frame[4] <= 86_400_001


@pytest.mark.parametrize(("changed", "passed"), [
    ({"ids": (1, 2)}, False),
    ({"ids": (), "logprobs": ()}, False),
    ({"ids": (), "logprobs": (), "stopped": True}, True),
    ({"ids": ((1 << 31) - 1,)}, True),
    ({"ids": (1 << 31,)}, False),
    ({"top": ((Candidate(1 << 31, -0.5),),)}, False),
    ({"top": ((Candidate(1, -0.5),) * 20,)}, True),
    ({"top": ((Candidate(1, -0.5),) * 21,)}, False),
    ({"top": ((), ())}, False),
    ({"logprobs": (-0.1, -0.1)}, False),
    ({"logprobs": (0.001,)}, True),
    ({"logprobs": (0.1,)}, False),
    ({"logprobs": (float("nan"),)}, False),
    ({"cached": 2}, False),
    ({"computed": 1, "engine_seconds": 3600.0}, True),
    ({"engine_seconds": 3601.0}, False),
    ({"engine_seconds": -1.0}, False),
])  # fmt: skip
def test_bounds_of_a_reply(site: Site, changed: dict[str, Any], passed: bool) -> None:
    """Those that the page has, both sides of each."""
    completion = Completion(**{"ids": (1,), "logprobs": (-0.1,), **changed})
    site.serve()
    site.engine.act = lambda ids, n: completion
    frame = site.opened().ask(1, 0, [72])
    assert frame[:2] == [17, 1] if passed else frame[:3] == [19, 1, "protocol"]


def test_ids_that_came_are_held_whatever_the_ask_is_answered_with(site: Site) -> None:
    site.serve(ids_per_second=1)
    client = site.opened()
    assert client.ask(0, 0, [72] * 100)[0] == 17
    client.push(100, [72] * 100)
    assert client.ask(1, 200, [72])[2] == "unavailable"
    assert site.running is not None
    assert site.running.gateway.sessions.ids == 201
    assert (site.engine.asked, site.engine.prefills) == (1, 0)


def test_a_keys_ids_are_bounded_and_asked_for_again(site: Site) -> None:
    site.serve(ids=10)
    older, newer = site.opened(), site.opened()
    assert older.ask(0, 0, [72] * 8)[0] == 17
    assert newer.ask(0, 0, [72] * 8)[0] == 17
    assert older.ask(1, 8, [72]) == [18, 1]
    assert older.ask(2, 0, [72] * 9)[0] == 17


def test_refusals_before_the_upgrade(site: Site) -> None:
    site.serve()
    assert site.running is not None
    url = site.running.url.replace("http", "ws", 1) + "/v1/session"
    site.running.gateway.draining = True
    for secret, status in (("wrong", 503), (site.secret, 503)):
        assert _status(url, secret) == status
    site.running.gateway.draining = False
    assert _status(url, "wrong") == 401
    own = site.running.url
    assert [_status(url, site.secret, origin) for origin in (own, "https://any.page")] == [101, 403]


def _status(url: str, secret: str, origin: str | None = None) -> int:
    headers = {"Authorization": f"Bearer {secret}", **({"Origin": origin} if origin else {})}
    try:
        with connect(url, additional_headers=headers):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def test_how_it_is_found(site: Site) -> None:
    site.serve()
    assert site.running is not None
    url, headers = site.running.url, {"Authorization": f"bearer {site.secret}"}
    listed = httpx2.get(url + "/v1/models", headers=headers, trust_env=False).json()
    assert listed["data"][0]["owned_by"] == "edgewise-gateway"
    assert httpx2.get(url + "/v1/models", trust_env=False).status_code == 401
    assert httpx2.get(url + "/health", trust_env=False).json() == {"status": "ok", "protocol": 1}


def test_a_gateway_alone_refuses_strangers_and_a_drain_answers_what_is_in_flight() -> None:
    engine, port = ScriptedEngine(seconds=0.5), free_port()
    command = [sys.executable, "-m", "edgewise", "gateway", "--engine", engine.url]
    process = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        wait(lambda: answers(f"http://127.0.0.1:{port}/ready"), 60)
        with PlainClient(f"http://127.0.0.1:{port}") as client:
            client.open()
            assert stranger(f"http://127.0.0.1:{port}/v1/session") == 400
            client.send([3, 1, 0, [72], check([72])])
            wait(lambda: engine.running == 1, 10)
            process.send_signal(signal.SIGTERM)
            assert client.receive()[:2] == [17, 1]
            assert client.code() == 1001
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        engine.close()


def stranger(url: str) -> int:
    """The status for who asks for another name."""
    return httpx2.get(url, headers={"Host": "any.page"}, trust_env=False).status_code


def answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=1, trust_env=False).is_success
    except httpx2.TransportError:
        return False


def wait(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
