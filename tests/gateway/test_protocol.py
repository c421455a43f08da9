"""Frames, and the check of a prefix: the same however its ids came, and as docs/protocol.md says.

And what that page says of each limit is what a gateway does: reason, patience, close code.
Verification, too: what is asked of the engine, replied, refused, counted and paid.
tests/test_outside_bytes.py has what is no frame.
"""

import asyncio
import re
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus

from benchmarks.protocol_exchange import BEGIN, END, PAGE, Message, Side, shown, text_engine, words
from edgewise.completion import Completion, Verified
from edgewise.edge.base import PROBES
from edgewise.errors import CloudProtocolError, CloudRefused, CloudRejected, CloudUnavailable
from edgewise.events import Candidate
from edgewise.gateway import connection
from edgewise.gateway.connection import LARGE
from edgewise.keys.keys import revoke_key
from edgewise.listening import connections
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.wire import protocol
from tests.gateway.doubles import (
    FailingLimits,
    PlainEngine,
    VerifyingEngine,
    letters,
    own_id,
    raising,
    read_along,
)
from tests.gateway.plain_client import PlainClient, check, fingerprint, opened, page_probes
from tests.gateway.processes import until
from tests.gateway.running import Running, gateway

TEXT = PAGE.read_text(encoding="utf-8")
PARAGRAPHS = TEXT[TEXT.index(BEGIN) : TEXT.index(END)].replace("```text\n", "").split("\n\n")
FRAMES = [one.rstrip("`\n") for one in PARAGRAPHS if one.startswith(("device: ", "gateway: "))]


def message_of(frame: str) -> Message:
    """A paragraph's bytes, which stand before two blanks or the end of a line."""
    title, *lines = frame.splitlines()
    side, _, why = title.partition(": ")
    data = bytes.fromhex("".join(line[4:].partition("  ")[0][:50] for line in lines))
    return Message(cast(Side, side), data, why.partition(", ")[2])


def test_bytes_read_as_the_page_says() -> None:
    """And every kind of frame is shown."""
    for frame in FRAMES:
        message = message_of(frame)
        decode = protocol.from_device if message.side == "device" else protocol.from_gateway
        assert protocol.encode(decode(message.data)) == message.data
        assert shown([message]) == frame
    every = *protocol.FromDevice.__args__, *protocol.FromGateway.__args__
    titles = {frame.partition(": ")[2].partition(",")[0] for frame in FRAMES}
    assert titles == {words(kind.__name__) for kind in every}


def test_the_probes_and_the_worked_vector() -> None:
    probes = page_probes()
    assert tuple(probes) == PROBES
    told = [
        (int(count), int(value))
        for count, value in re.findall(r"^\| [1-5] \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE)
    ]
    ids: list[int] = []
    for text, (count, value) in zip(probes, told, strict=True):
        ids += [*text.encode(), len(text.encode())]
        assert len(text.encode()) == count
        assert check(ids) == value
    shown = fingerprint([list(text.encode()) for text in probes])
    assert f"so `tokenizer` is `{shown}`" in TEXT
    assert shown == protocol.tokenizer_fingerprint(ByteTokenizer())


def test_a_client_of_the_page_alone_is_served() -> None:
    """The reply's ids are its own to send: it writes the engine's whole text, two at a time."""
    with (
        text_engine() as engine,
        gateway([engine.url]) as running,
        PlainClient(running.url) as client,
    ):
        assert client.open()[0] == 16
        client.prefetch(0, list(b"Hi"))
        written = list(b"Hi")
        for number in range(20):
            new = written[len(client.held) :]
            reply = client.ask(number, len(client.held), new, 2, 5000, 1)
            assert (reply[0], reply[1]) == (17, number)
            assert len(reply[3]) == len(reply[2]) == len(reply[8])
            written += [token for token in reply[2] if token < 256]
            if reply[4]:
                break
        assert bytes(written) == b"Hi, and welcome!"
        client.send([5])
        assert client.code() is None


id_lists = st.lists(st.integers(0, 151_935), max_size=40)


@given(id_lists, id_lists, st.integers(0, 2**32 - 1))
def test_frames_survive_the_wire(ids: list[int], more: list[int], number: int) -> None:
    checksum = protocol.Ledger(ids).checksum
    for frame in (
        protocol.Open(1, "0" * 16, "name"),
        protocol.Prefetch(len(ids), more, checksum),
        protocol.Ask(number, 0, ids, checksum, 4, 100, 5, (0.7, 40, 0.9, 0.0, 3)),
        protocol.Ask(number, 0, ids, checksum, 0, verify=3),
        protocol.Cancel(number),
        protocol.Close(),
    ):
        assert protocol.from_device(protocol.encode(frame)) == frame
    for reply in (
        protocol.Opened(1, "name", 3, 4, "vLLM", "model", True),
        protocol.Reply(number, tuple(ids), (None,) * len(ids), True, 1, 2, 0.1, (((1, -0.5),),)),
        protocol.Reply(number, (), (), verified=((-3.5, 7, -0.5),)),
        protocol.NeedFull(None),
        protocol.Failed(None, "timeout", "Too late.", 5),
    ):
        assert protocol.from_gateway(protocol.encode(reply)) == reply
    every = Sampling(temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, seed=number)
    for sampling in (Sampling(), every):
        assert protocol.unpacked(protocol.packed(sampling)) == sampling


def test_a_consult_is_small_whatever_the_prompt() -> None:
    """120 bytes up for 16 new ids, 200 down, candidates excluded; and so is a full prefix."""
    new = [151_935 - i for i in range(16)]
    checksum = protocol.Ledger([151_000] * 4000 + new).checksum
    up = protocol.Ask(2**32 - 1, 4000, new, checksum, 1, 60_000, 5)
    assert len(protocol.encode(up)) <= 120
    down = protocol.Reply(2**32 - 1, (151_935,), (-12.3456789,), False, 4015, 1, 0.0123)
    assert len(protocol.encode(down)) <= 200
    data = protocol.encode(protocol.Prefetch(0, [70_000] * protocol.MAX_IDS, 0))
    tracemalloc.start()
    frame = protocol.from_device(data)
    assert isinstance(frame, protocol.Prefetch)
    ledger = protocol.Ledger(frame.ids)
    del frame
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(ledger) == protocol.MAX_IDS
    assert size < 5 * protocol.MAX_IDS


# Of lengths around those at which many ids are hashed as vectors.
PART = st.tuples(
    st.sampled_from([0, 1, 5, 1022, 1023, 1024, 1025, 2048, 3000]), st.integers(0, 2**32 - 1)
)


@given(st.lists(st.tuples(PART, st.floats(0, 1)), max_size=8))
def test_the_check_is_that_of_the_page(parts: list[tuple[tuple[int, int], float]]) -> None:
    ledger, expected = protocol.Ledger(), list[int]()
    for (length, first), where in parts:
        at = int(where * len(expected))
        ids = [(first + 2_654_435_761 * index) % 2**32 for index in range(length)]
        expected = [*expected[:at], *ids]
        assert ledger.put(at, protocol.Ledger(ids) if length % 2 else ids)
        assert ledger.ids == expected
        assert (len(ledger), ledger.checksum) == (len(expected), check(expected))


@pytest.mark.parametrize("token", [0, 1, 2**32 - 2, 2**32 - 1])
def test_the_longest_prefix(token: int) -> None:
    ids = [token] * protocol.MAX_IDS
    assert protocol.Ledger(ids).checksum == check(ids)


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.5], ["a"], [None]])
def test_what_are_no_ids_is_a_sentence(ids: list[int]) -> None:
    with pytest.raises(CloudProtocolError, match="32-bit"):
        protocol.Ledger(ids)
    ledger = protocol.Ledger([1])
    with pytest.raises(CloudProtocolError):
        ledger.put(1, ids)
    assert ledger.ids == [1]
    # Nested lists do not exhaust the stack.
    with pytest.raises(CloudProtocolError):
        protocol.from_device(b"\x91" * 100_000)


ENDINGS, REFUSALS = (
    PAGE.read_text(encoding="utf-8")
    .split("## What each limit returns")[1]
    .split("Consults: *failed*")
)


def rows(table: str) -> dict[str, list[str]]:
    """Of a table of the page, by the first column."""
    lines = re.findall(r"^\| (.*) \|$", table.split("\n\nA device")[0], re.MULTILINE)
    cells = [re.split(r" ?\| ", line) for line in lines]
    return {first: rest for first, *rest in cells if first not in ("event", "---|---")}


LIMITS = ("consults_per_second", "ids_per_second", "tokens_per_day", "sessions")


class Site:
    """A gateway over an engine that does as it is told, with one key."""

    def __init__(self, stack: ExitStack, file: Path, add: Callable[..., str]) -> None:
        self._stack, self.file, self._add = stack, file, add
        self.engine = PlainEngine()

    def serve(self, **options: Any) -> None:
        limits = {name: options.pop(name) for name in LIMITS if name in options}
        self.secret = self._add("device", **limits)
        made = gateway([self.engine], keys=self.file, **options)
        self.running: Running = self._stack.enter_context(made)

    def client(self) -> PlainClient:
        return self._stack.enter_context(PlainClient(self.running.url, self.secret))

    def opened(self) -> PlainClient:
        client = self.client()
        assert client.open()[0] == 16
        return client


@pytest.fixture
def site(keys: Path, add: Callable[..., str]) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, keys, add)


OPEN = [1, 1, PlainClient.tokenizer]
ASK = [3, 1, 0, [72], check([72])]
MANY = [1] * (LARGE + 1)

MANY_IDS = [1] * 131_072
PLAIN: list[list[Any]] = [[1, 0, [72]]]

ENDS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "no open frame within 10 s": ({}, []),
    "the first frame is not *open*, or a second *open*": ({}, [[4, 1]]),
    "another version": ({}, [[1, 2, "0" * 16]]),
    "another vocabulary": ({}, [[1, 1, "0" * 16]]),
    "the key has all its sessions open": ({"sessions": 1, "before": 1}, [OPEN]),
    "the gateway has no room for more sessions": ({"most": 1, "before": 1}, [OPEN]),
    "a text message, or a malformed frame": ({}, [OPEN, "hello"]),
    "a prefix of more than 131,072 ids": (
        {},
        [OPEN, [2, 0, MANY_IDS, check(MANY_IDS)], [2, 131_072, [1], 0]],
    ),
    "an ask's number that is in flight": ({"hang": True}, [OPEN, ASK, ASK]),
    "more than 2,000 frames a second (one second's worth may be saved up)": (
        {},
        [OPEN, *[[4, 1]] * 3],
    ),
    "the first frame has more than 16,384 bytes": ({}, [[*OPEN, "", bytes(LARGE)]]),
    "the key is revoked or expired": ({"hang": True, "revoke": True}, [OPEN, ASK]),
    "a frame waits more than 10 s because the key has sent too many ids": (
        {"ids_per_second": 1},
        [OPEN, *[[2, 0, MANY, check(MANY)]] * 2],
    ),
    "a message above 1,048,576 bytes": ({}, [OPEN, bytes((1 << 20) + 1)]),
}
"""What a gateway and its key are like, and what a device sends it: frames, or whole messages."""


def test_every_row_has_its_test() -> None:
    assert set(rows(ENDINGS)) == set(ENDS)
    assert set(rows(REFUSALS)) == set(ASKS)


@pytest.mark.parametrize("what", ENDS)
def test_sessions_end_as_it_says(site: Site, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OPEN_SECONDS", 0.2 if what.startswith("no open") else 10.0)
    monkeypatch.setattr(connection, "FRAMES_PER_SECOND", 2 if "frames a" in what else 2000)
    reason, patience, code = rows(ENDINGS)[what]
    if what.startswith("a frame waits"):
        assert int(patience) == 1000 * connection.PAUSE_SECONDS
        monkeypatch.setattr(connection, "PAUSE_SECONDS", 0.2)
        patience = "200"
    options, sent = ENDS[what]
    special = {name: options.get(name) for name in ("before", "hang", "revoke")}
    site.serve(**{name: value for name, value in options.items() if name not in special})
    if special["before"]:
        site.opened()
    site.engine.go = asyncio.Event() if special["hang"] else None
    client = site.client()
    for frame in sent:
        client.socket.send(frame) if isinstance(frame, str | bytes) else client.send(frame)
        if frame is OPEN and frame is not sent[-1]:
            assert client.receive()[0] == 16
    if special["revoke"]:
        until(lambda: site.engine.asked == 1)
        revoke_key(site.file, "device")
    if reason != "no frame":
        failed = client.receive()
        assert failed[:3] == [19, None, reason.strip("`")]
        assert failed[4] == (None if patience == "nil" else int(patience))
    assert client.code() == int(code)


ASKS: dict[str, tuple[dict[str, Any], list[list[Any]]]] = {
    "more than 8 consults of the session wait": ({"waiting": 9}, [[9, 0, [72]]]),
    "the key exceeds its consults a second (two seconds' worth may be saved up)": (
        {"consults_per_second": 0.5},
        [[0, 0, [72]], [1, 0, [72]]],
    ),
    "the key exceeds its ids a second, sent or computed for it "
    "(ten seconds' worth may be saved up)": (
        {"ids_per_second": 1},
        [[0, 0, [72] * 100], [1, 0, [72]]],
    ),
    "n is above the key's daily tokens": ({"tokens_per_day": 10}, [[1, 0, [72], 11]]),
    "n is above the rest of the key's daily tokens": (
        {"tokens_per_day": 10},
        [[0, 0, [72]], [1, 0, [72], 10]],
    ),
    "the gateway cannot count usage now": (
        {"tokens_per_day": 10, "limits": FailingLimits()},
        PLAIN,
    ),
    "the engine's queue is full": ({"concurrency": 1, "queue": 0, "busy": True}, PLAIN),
    "the deadline passed": ({"waiting": 0}, [[1, 0, [72], 1, 50]]),
    "the prefix has no ids": ({}, [[1, 0, []]]),
    "sampling out of range": ({}, [[1, 0, [72], 1, 5000, 0, [-1.0, 0, 1.0, 0.0, 1]]]),
    "n and `verify` are both 0, or neither is": ({}, [[1, 0, [72], 0]]),
    "`verify` is as many ids as there are or more, or more than 0 where an engine cannot verify": (
        {},
        [[1, 0, [72, 72], 0, 5000, 0, None, 1]],
    ),
    "the engine is down or not ready": ({"error": CloudUnavailable("down")}, PLAIN),
    "the engine declines the request, for instance for its length": (
        {"error": CloudRejected("no")},
        PLAIN,
    ),
    "the engine refuses the gateway's own key": ({"error": CloudRefused("no")}, PLAIN),
    "the engine's reply is malformed or out of bounds": ({"error": CloudProtocolError("x")}, PLAIN),
}
"""What a gateway, its key and its engine are like; consults, of which the last fails."""


@pytest.mark.parametrize("what", ASKS)
def test_consults_fail_as_it_says(site: Site, what: str) -> None:
    reason, patience = rows(REFUSALS)[what]
    options, (*answered, last) = ASKS[what]
    special = {name: options.get(name) for name in ("error", "waiting", "busy")}
    site.serve(**{name: value for name, value in options.items() if name not in special})
    if special["error"]:
        site.engine.act = raising(special["error"])
    if special["waiting"] is not None or special["busy"]:
        site.engine.go = asyncio.Event()
    if special["busy"]:
        site.opened().send(ASK)
        until(lambda: site.engine.asked == 1)
    client = site.opened()
    for number in range(special["waiting"] or 0):
        client.send([3, number, 0, [72], check([72])])
    for ask in answered:
        assert client.ask(*ask)[0] == 17
    failed = client.ask(*last)
    assert [failed[0], failed[2]] == [19, reason.strip("`")]
    if patience == "nil" or patience.isdigit():
        assert failed[4] == (None if patience == "nil" else int(patience))
    else:
        assert 0 < failed[4] <= 86_400_001


WITHIN: list[dict[str, Any]] = [
    {"ids": (), "logprobs": (), "stopped": True},
    {"ids": ((1 << 31) - 1,)},
    {"top": ((Candidate(1, -0.5),) * 20,)},
    {"logprobs": (0.001,)},
    {"computed": 1, "engine_seconds": 3600.0},
]
BEYOND: list[dict[str, Any]] = [
    {"ids": (1, 2)},
    {"ids": (), "logprobs": ()},
    {"ids": (1 << 31,)},
    *({"top": top} for top in (((Candidate(1 << 31, -0.5),),), ((Candidate(1, -0.5),) * 21,))),
    {"top": ((), ())},
    *({"logprobs": logprobs} for logprobs in ((-0.1, -0.1), (0.1,), (float("nan"),))),
    {"cached": 2},
    *({"engine_seconds": seconds} for seconds in (3601.0, -1.0)),
]


def test_bounds_of_a_reply(site: Site) -> None:
    """Those that the page has, both sides of each."""
    site.serve()
    client = site.opened()
    for number, changed in enumerate(WITHIN + BEYOND):
        completion = Completion(**{"ids": (1,), "logprobs": (-0.1,), **changed})
        site.engine.act = lambda ids, n, said=completion: said
        frame = client.ask(number, 0, [72])
        expected = [17, number] if changed in WITHIN else [19, number, "protocol"]
        assert frame[: len(expected)] == expected, changed


def test_ids_that_came_are_held_whatever_the_ask_is_answered_with(site: Site) -> None:
    site.serve(ids_per_second=1)
    client = site.opened()
    assert client.ask(0, 0, [72] * 100)[0] == 17
    client.prefetch(100, [72] * 100)
    assert client.ask(1, 200, [72])[2] == "unavailable"
    assert site.running.gateway.sessions.ids == 201
    assert (site.engine.asked, site.engine.prefills) == (1, 0)


def test_held_ids_are_bounded_and_asked_for_again(site: Site) -> None:
    site.serve(most_ids=10)
    older, newer = site.opened(), site.opened()
    for client in (older, newer):
        assert client.ask(0, 0, [72] * 8)[0] == 17
    assert older.ask(1, 8, [72]) == [18, 1]
    assert older.ask(2, 0, [72] * 9)[0] == 17


def test_a_prefetch_without_new_ids_asks_nothing_of_the_engine(site: Site) -> None:
    """Each would send it the whole prefix, and end the prefetch before."""
    site.serve()
    client = site.opened()
    client.prefetch(0, [72] * 100)
    until(lambda: site.engine.prefills == 1)
    for position in (100, 100, 99):
        client.prefetch(position, [])
    client.prefetch(99, [72, 73])
    until(lambda: site.engine.prefills > 1)
    assert client.ask(1, 101, [])[0] == 17
    assert site.engine.prefills == 2


@pytest.mark.deep
def test_who_does_not_read_is_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consults would pile up, each with a copy of its ids."""
    monkeypatch.setattr(connection, "OPEN_SECONDS", 2.0)
    monkeypatch.setattr(connections, "WAIT_SECONDS", 3600.0)
    site.serve()
    client = site.opened()
    client.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with suppress(ConnectionClosed):
        for number in range(1900):
            client.held.append(72)
            client.send([3, number, number, [72], check(client.held), 4096, 60_000])
    made = site.running.gateway
    until(lambda: not made.connections or made.sessions.ids == 1900)
    assert made.sessions.ids < 1900
    assert not made.connections


def test_who_drains_refuses_before_the_upgrade(site: Site) -> None:
    """Whatever the key. Other refusals: tests/gateway/test_browser_page.py."""
    site.serve()
    site.running.gateway.draining = True
    for secret in ("wrong", site.secret):
        with pytest.raises(InvalidStatus) as refused, PlainClient(site.running.url, secret):
            pass
        assert refused.value.response.status_code == 503


PROMPT = list(b"Where?")
WRITTEN = [own_id(PROMPT), 33, 34]
IDS = PROMPT + WRITTEN
VERIFY = (0, 5000, 0, None, len(WRITTEN))
"""Of an ask: no token, a deadline, no candidates, greedy, and so many ids to verify."""

Add = Callable[..., str]


def wire(completion: Completion) -> list[list[Any]]:
    """As the rows travel."""
    return [[one.logprob, one.id, one.best] for one in completion.verified]


@pytest.fixture
def engine() -> VerifyingEngine:
    made = VerifyingEngine()
    made.size = 258
    return made


@pytest.fixture
def running(engine: VerifyingEngine) -> Iterator[Running]:
    with gateway([engine]) as made:
        yield made


@pytest.fixture
def client(running: Running) -> Iterator[PlainClient]:
    with opened(running.url) as made:
        yield made


def test_the_ids_of_a_device_are_verified(running: Running, client: PlainClient) -> None:
    reply = client.ask(1, 0, IDS, *VERIFY)
    assert (reply[:4], reply[8]) == ([17, 1, [], []], [])
    assert reply[9] == wire(read_along(IDS, len(WRITTEN)))
    assert reply[9][0][1] == WRITTEN[0]
    # Only the new ids travel, and one may be verified alone.
    longer = [*IDS, 35]
    assert client.ask(2, len(IDS), [35], *VERIFY[:-1], 1)[9] == wire(read_along(longer, 1))
    told = running.metrics()
    assert 'edgewise_gateway_verified_tokens_total{key="anybody"} 4.0' in told
    assert 'edgewise_gateway_cloud_tokens_total{key="anybody"} 0.0' in told
    assert 'edgewise_gateway_consults_total{outcome="answered"} 2.0' in told
    # What is verified stands behind the ids that are held.
    client.prefetch(0, IDS)
    assert client.ask(3, len(IDS), [], *VERIFY)[9] == reply[9]
    assert client.ask(4, 90, [1], *VERIFY) == [18, 4]
    # A device that knows no verification leaves the trailing elements out, or some of them.
    for number, known in enumerate(([], [1], [1, 5000, 2, None], [1, 5000, 2, None, 0])):
        assert client.ask(number, 0, IDS, *known)[:3] == [17, number, [own_id(IDS)]]


@pytest.mark.parametrize(
    ("ids", "more"),
    [
        (IDS, [0]),
        (IDS, [1, 5000, 0, None, 2]),
        *((IDS, [0, 5000, 0, None, count]) for count in (0, len(IDS), len(IDS) + 1, 4096)),
        ([], [0, 5000, 0, None, 1]),
    ],
)
def test_what_cannot_be_asked_is_refused_and_the_session_goes_on(
    engine: VerifyingEngine, client: PlainClient, ids: list[int], more: list[Any]
) -> None:
    assert client.ask(1, 0, ids, *more)[:3] == [19, 1, "rejected"]
    assert engine.asked == 0
    assert client.ask(2, 0, IDS, *VERIFY)[0] == 17
    # More than any gateway verifies is no frame.
    client.send([3, 1, 0, IDS, check(IDS), 0, 5000, 0, None, 4097])
    assert client.receive()[:3] == [19, None, "protocol"]
    assert client.code() == 1002


@pytest.mark.parametrize("reads_once", [False, True])
def test_no_ask_exhausts_a_gateway_whose_engine_reads_a_prompt_for_each_id(
    engine: VerifyingEngine, client: PlainClient, *, reads_once: bool
) -> None:
    """1500 ids, all but one to be verified, would be two million in a thousand prompts."""
    engine.reads_once = reads_once
    engine.reads = lambda ids, n: Completion(ids=(), logprobs=(), verified=(TRUE,) * n)
    reply = client.ask(1, 0, [1] * 1500, 0, 20_000, 0, None, 1499)
    assert (reply[0] == 17, engine.asked) == (reads_once, int(reads_once))
    if not reads_once:
        said = "Of 1500 ids 1499 cannot be verified; verify fewer in an ask."
        assert reply[1:4] == [1, "rejected", said]
    # A block of a device, behind more than most models take.
    assert client.ask(2, 0, [1] * 131_072, 0, 20_000, 0, None, 16)[0] == 17


@pytest.mark.parametrize("others", [[PlainEngine()], [VerifyingEngine("other"), PlainEngine()]])
def test_a_fleet_verifies_if_all_its_engines_do(others: list[PlainEngine]) -> None:
    with gateway([VerifyingEngine(), *others]) as running, PlainClient(running.url) as client:
        assert client.open()[7] is False
        assert client.ask(1, 0, IDS, *VERIFY)[:3] == [19, 1, "rejected"]
        assert client.ask(2, 0, IDS)[0] == 17
    fleet = [VerifyingEngine(), VerifyingEngine("b")]
    with gateway(fleet) as running, PlainClient(running.url) as client:
        assert client.open()[7] is True


def test_a_verification_costs_one_token(engine: VerifyingEngine, keys: Path, add: Add) -> None:
    secret = add(tokens_per_day=2)
    engine.reads = letters
    with gateway([engine], keys=keys) as running, opened(running.url, secret) as client:
        for number in range(2):
            assert client.ask(number, 0, IDS, *VERIFY)[:3] == [19, number, "protocol"]
        engine.reads = read_along
        for number in range(2):
            assert client.ask(number, 0, IDS, *VERIFY)[0] == 17
        assert client.ask(2, 0, IDS, *VERIFY)[:3] == [19, 2, "unavailable"]
        assert 'verified_tokens_total{key="laptop"} 6.0' in running.metrics()


NAN, INFINITY = float("nan"), float("inf")
TRUE = Verified(-4.5, 98, -0.25)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [TRUE],
        [TRUE, TRUE, TRUE],
        *([TRUE, Verified(logprob, 98, -0.25)] for logprob in (NAN, -INFINITY)),
        *([TRUE, Verified(*lie)] for lie in ((0.5, 98, 0.5), (-0.5, 98, NAN), (-0.25, 98, -0.5))),
        *([TRUE, Verified(-4.5, token, -0.25)] for token in (-1, 300)),
    ],
)
def test_an_engine_that_lies_fails_the_consult(
    engine: VerifyingEngine, client: PlainClient, rows: list[Verified]
) -> None:
    engine.reads = lambda ids, n: Completion(ids=(), logprobs=(), verified=tuple(rows))
    assert client.ask(1, 0, IDS, 0, 5000, 0, None, 2)[:3] == [19, 1, "protocol"]
    engine.reads = read_along
    assert client.ask(2, 0, IDS, *VERIFY)[0] == 17
    # So does one that verifies unasked.
    engine.act = lambda ids, n: Completion(ids=(97,), logprobs=(-0.1,), verified=(TRUE,))
    assert client.ask(3, 0, IDS)[:3] == [19, 3, "protocol"]
