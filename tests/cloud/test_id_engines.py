"""Engines by ids: what vLLM, SGLang and llama-server are asked, and the connections to them.

Replies of vLLM and SGLang are written from their sources (`make test-vllm`).
"""

import asyncio
import gc
import logging
import select
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.connect import connect, open_engine
from edgewise.cloud.engine import EngineCloud, IoThread, LlamaServer
from edgewise.cloud.registry import UnknownEngine
from edgewise.completion import Completion
from edgewise.engines.base import Client
from edgewise.engines.http import Endpoint
from edgewise.errors import (
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    UsageError,
    VocabularyMismatch,
)
from edgewise.pair import Pair
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.servers.base import Request
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.doubles.engine_dialects import DIALECTS, Dialect, Writing
from tests.doubles.scripted_engine import Edited, Misdeed, ScriptedEngine, Twisted, Wire, said
from tests.gateway.processes import until

WORDS: dict[Dialect, str] = {"vllm": "vLLM", "sglang": "SGLang"}


@pytest.fixture(params=WORDS)
def server(request: pytest.FixtureRequest) -> Iterator[ScriptedEngine]:
    with closing(ScriptedEngine(dialect=request.param)) as made:
        yield made


@pytest.fixture
def cloud(server: ScriptedEngine) -> Iterator[EngineCloud]:
    made = open_engine(server.url, key="sk", engine=server.speaks)
    assert isinstance(made, EngineCloud)
    yield made
    made.close()


def ask(cloud: EngineCloud, ids: list[int], n: int = 1, **drawn: Any) -> Completion:
    request = ConsultRequest(ids, n, 30, Sampling(**drawn))
    return cloud.open(Prompt(tuple(ids))).ask(request).result()


def write(server: ScriptedEngine, **values: Any) -> None:
    """Let it answer every consult with these values."""
    server.fault = lambda number: Twisted(lambda writing: replace(writing, **values))


OTHERS: list[tuple[Any, type[Exception], str]] = [
    (b"", UnknownEngine, "vllm"),
    ({"hello": 1}, UnknownEngine, "vllm"),
    ({"data": []}, CloudUnavailable, "127.0.0.1"),
    ({"data": [{"id": "gpt", "owned_by": "someone"}]}, UnknownEngine, "someone"),
    ({"data": [{"id": "gpt"}]}, UnknownEngine, "vllm"),
]


def test_anything_else_is_not_known(engine: ScriptedEngine) -> None:
    for models, error, problem in OTHERS:
        engine.replies["/v1/models"] = said(models)
        with pytest.raises(error, match=problem):
            open_engine(engine.url)
    engine.requests.clear()
    open_engine(engine.url, engine="vllm").close()
    assert not engine.requests, "an engine that is named was asked what it is"


def test_a_router_with_one_engine_down_is_ready(server: ScriptedEngine, cloud: EngineCloud) -> None:
    server.replies["/health"] = said(b"Unhealthy servers", 503)
    server.replies["/readiness"] = said({"healthy_workers": 1, "total_workers": 2})
    cloud.check_vocabulary(ByteTokenizer())
    assert ask(cloud, [97]).ids


def test_a_consult(server: ScriptedEngine, cloud: EngineCloud) -> None:
    write(server, ids=[97], logprobs=[-0.5], top=[[(97, -0.5), (7, -2.0)]], took=0.0123)
    completion = ask(cloud, [1, 2, 3])
    body, headers = server.requests[-1].body, server.requests[-1].headers
    assert headers["Authorization"] == "Bearer sk"
    assert len(headers["X-Session-Id"]) == 24
    if server.speaks == "vllm":
        assert (body["prompt"], body["model"], body["max_tokens"]) == ([1, 2, 3], "scripted", 1)
        assert body["return_tokens_as_token_ids"] is True
    else:
        assert (body["input_ids"], body["max_new_tokens"]) == ([1, 2, 3], 1)
        assert body["routing_key"] == headers["X-SMG-Routing-Key"]
        assert completion.engine_seconds == 0.0123
    assert (completion.ids, completion.logprobs) == ((97,), (-0.5,))
    assert [candidate.id for candidate in completion.top[0]] == [97, 7]
    assert (completion.cached, completion.computed, completion.stopped) == (2, 1, False)
    seed = "seed" if server.speaks == "vllm" else "sampling_seed"
    assert body["temperature"] == 0
    assert seed not in body
    ask(cloud, [1, 2], temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, seed=3)
    body = server.requests[-1].body
    drawn = [body[name] for name in ("temperature", "top_k", "top_p", "min_p", seed)]
    assert drawn == [0.7, 40, 0.9, 0.1, Sampling(temperature=0.7, seed=3).seed_at(2)]


def test_a_salt_is_sent_where_it_has_one(server: ScriptedEngine, cloud: EngineCloud) -> None:
    """One that takes anything for a salt has none."""
    client, engine, dialect = Client("s", "pepper"), cloud.engine, DIALECTS[server.speaks]
    cloud.check_vocabulary(ByteTokenizer())
    assert (engine.dialect, engine.described.model) == (WORDS[server.speaks], "scripted")
    assert engine.salted
    cloud.submit(engine.complete([1], 1, Sampling(), client), 30).result()
    assert server.requests[-1].body["cache_salt"] == "pepper"
    written = Writing(ids=[97], logprobs=[-0.5], top=[[(97, -0.5)]])
    server.replies[dialect.path] = said(dialect.reply(written))
    cloud.check_vocabulary(ByteTokenizer())
    assert not engine.salted
    cloud.submit(engine.complete([1], 1, Sampling(), client), 30).result()
    assert "cache_salt" not in server.requests[-1].body


def test_who_cannot_be_asked_declines_no_salt(server: ScriptedEngine, cloud: EngineCloud) -> None:
    """Or tenants would share the cache of an engine that ignores it, and was away for a moment."""
    written = Writing(ids=[97], logprobs=[-0.5], top=[[(97, -0.5)]])
    dialect = DIALECTS[server.speaks]

    def away_for_numbers(body: Any) -> tuple[int, object]:
        return (503, b"") if body.get("cache_salt") == 0 else (200, dialect.reply(written))

    server.replies[dialect.path] = away_for_numbers
    cloud.check_vocabulary(ByteTokenizer())
    assert not cloud.engine.salted


def test_an_end_that_is_kept_is_the_edges(server: ScriptedEngine, cloud: EngineCloud) -> None:
    cloud.check_vocabulary(ByteTokenizer())
    write(server, ids=[], logprobs=[], top=[], ended=True, cached=None, computed=None)
    completion = ask(cloud, [1], 4)
    assert completion.stopped
    assert (completion.ids, completion.logprobs) == ((256,), (None,))
    assert (completion.cached, completion.computed) == (None, None)


def test_tokens_as_text_are_no_ids() -> None:
    with closing(ScriptedEngine(dialect="vllm")) as server:
        cloud = open_engine(server.url)
        assert isinstance(cloud, EngineCloud)
        with closing(cloud):
            for token in ("sky", "token_id:", "token_id:-1", "token_id:٣", "token_id:1.5"):
                write(server, ids=[token])
                with pytest.raises(CloudProtocolError, match="tokens as text"):
                    ask(cloud, [1])


def test_one_that_lies_at_the_first_request_is_not_asked_by_text(server: ScriptedEngine) -> None:
    write(server, ids=[98, 99, 100], logprobs=[-0.5] * 3, top=[])
    with pytest.raises(CloudProtocolError):
        connect(server.url, ByteTokenizer())
    assert not any("chat" in path for path in server.paths)


AS_TEXT = {"choices": [{"text": "sky", "logprobs": None, "finish_reason": "length"}]}
NO_IDS = [said(AS_TEXT), said({"error": {"message": "not supported"}}, 400)]


def test_one_without_ids_or_a_tokenizer_is_refused(
    server: ScriptedEngine, cloud: EngineCloud
) -> None:
    path = DIALECTS[server.speaks].path
    for server.replies[path] in NO_IDS:
        with pytest.raises(CloudRejected, match="token ids") as refused:
            cloud.check_vocabulary(ByteTokenizer())
        assert refused.value.setting is None
    server.replies = {"/tokenize": said(b"no tokenizer", 400)}
    with pytest.raises(VocabularyMismatch) as mismatch:
        cloud.check_vocabulary(ByteTokenizer())
    assert mismatch.value.setting is None


def test_the_probe_takes_few_rounds(server: ScriptedEngine, cloud: EngineCloud) -> None:
    """Readiness and name, the strings, the consults, what it detokenises: each in parallel."""
    server.pause = 0.1
    cloud.check_vocabulary(ByteTokenizer())
    rounds, end = 0, 0.0
    for asked in sorted(server.requests, key=lambda asked: asked.begun):
        if asked.begun >= end:
            rounds, end = rounds + 1, asked.ended
        end = min(end, asked.ended)
    assert rounds == 4
    assert len(server.requests) >= 10


def test_one_that_is_not_ready_is_not_probed(server: ScriptedEngine, cloud: EngineCloud) -> None:
    server.replies["/health"] = said(b"loading", 503)
    for _ in range(2):
        with pytest.raises(CloudUnavailable, match="503"):
            cloud.check_vocabulary(ByteTokenizer())
        assert {*server.paths} <= {"/health", "/readiness", "/v1/models"}
        server.replies["/readiness"] = said({"status": "not_ready"}, 503)


_OPEN = asyncio.open_connection


def http(text: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


class Talkative:
    """Answers each request with its path, and then writes `more`, or the reply again for None.

    If that comes `later`, it does so once the reply is taken, and hangs up if it `leaves`. `asked`
    are the paths, `opened` counts the connections.
    """

    def __init__(self, more: bytes | None, *, later: bool = False, leaves: bool = False) -> None:
        self.more, self.later, self.leaves = more, later, leaves
        self.asked: list[str] = []
        self.opened = 0
        self._serving = list[asyncio.Task[None] | None]()
        self._taken = asyncio.Event()
        # Bytes, and an end of them as one more: written, and read by the client's event loop.
        self._written = self._come = 0
        self._writer: Any = None

    def replies(self, paths: str, *, unread: bool = False) -> list[str]:
        """What requests for these paths of a letter get, each sent once all of the last has come.

        With `unread` that is as far as the socket.
        """
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "open_connection", self._open)
            return asyncio.run(self._replies(paths, unread=unread))

    async def _replies(self, paths: str, *, unread: bool) -> list[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        found: list[str] = []
        try:
            for path in paths:
                found.append((await endpoint.send(Request(f"/{path}"))).decode())
                self._taken.set()
                if unread:
                    # The server's turn; the loop looks at no socket before the next one's end.
                    await asyncio.sleep(0)
                    socket = self._writer.get_extra_info("socket")
                    assert select.select([socket], [], [], 5)[0]
                while not (unread or self._come == self._written or self._writer.is_closing()):
                    await asyncio.sleep(0.001)
        finally:
            self._taken.set()
            await endpoint.close()
            server.close()
            await asyncio.gather(*filter(None, self._serving))
        return found

    async def _open(self, *args: Any, **options: Any) -> Any:
        reader, writer = await _OPEN(*args, **options)
        self._writer, self._come = writer, self._written
        feed, end = reader.feed_data, reader.feed_eof

        def fed(data: bytes) -> None:
            self._come += len(data)
            feed(data)

        def ended() -> None:
            self._come += 1
            end()

        reader.feed_data, reader.feed_eof = fed, ended
        return reader, writer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self._serving.append(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                self._taken.clear()
                self.asked.append(head.split(b" ", 2)[1].decode())
                reply = http(self.asked[-1])
                more = reply if self.more is None else self.more
                self._written += len(reply + more) + self.leaves
                if self.later:
                    writer.write(reply)
                    await self._taken.wait()
                    writer.write(more)
                else:
                    writer.write(reply + more)
                if self.leaves:
                    break
        writer.close()


LATE = http("late", "408 Request Timeout")


@pytest.mark.parametrize("later", [False, True])
def test_a_second_reply_is_no_reply_to_the_next_request(later: bool) -> None:
    """With the first or later: it would be taken for the completion of another prompt."""
    for more in (None, b"\r", http("/z")[:20], http("z" * 200_000)):
        server = Talkative(more, later=later)
        assert server.replies("abcd") == server.asked == ["/a", "/b", "/c", "/d"]


@pytest.mark.parametrize("more", [None, b"\r", LATE])
def test_what_came_unasked_counts_before_the_event_loop_has_read_it(more: bytes | None) -> None:
    """Seen where the processor was busy: the next request's reply, or its error."""
    server = Talkative(more, later=True)
    assert server.replies("abcd", unread=True) == server.asked == ["/a", "/b", "/c", "/d"]
    assert server.opened == 4


def test_a_connection_on_which_nothing_comes_unasked_is_kept() -> None:
    server = Talkative(b"")
    assert server.replies("abcd") == ["/a", "/b", "/c", "/d"]
    assert server.opened == 1
    # One that is closed while idle is not used again, also where a proxy says why it closes it.
    for last in (b"", LATE):
        server = Talkative(last, later=True, leaves=True)
        assert server.replies("abc") == server.asked == ["/a", "/b", "/c"]
        assert server.opened == 3


KEY = "sk-secret-0123"
CUT: list[Misdeed] = [Wire([]), "reset"]
"""A connection that is closed, and one of a process that is gone."""


def consult(address: str, *, n: int = 1, key: str | None = None) -> Completion:
    with closing(LlamaServer(address, key=key)) as server:
        return server.open(Prompt((1,))).ask(ConsultRequest([1], n, 60.0)).result(60)


def test_the_key_is_a_bearer_token_and_never_logged(engine: ScriptedEngine, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    engine.key = KEY
    assert consult(engine.url, key=KEY).ids
    with pytest.raises(CloudRefused):
        consult(engine.url)
    assert KEY not in caplog.text


@pytest.mark.parametrize("fault", CUT)
def test_only_over_a_kept_connection_is_sent_again(engine: ScriptedEngine, fault: Misdeed) -> None:
    """Over a new one it was read, and what it computed is billed; nor is it after a pause."""
    engine.fault = lambda number: fault
    with pytest.raises(CloudUnavailable):
        consult(engine.url)
    assert engine.asked == 1
    later = Edited(status=503, headers={"Retry-After": "0", "Connection": "close"})
    faults: list[Misdeed | None] = [None, fault, None, later, fault]
    engine.asked, engine.fault = 0, lambda number: faults[number]
    with closing(LlamaServer(engine.url)) as server:
        session = server.open(Prompt((1,)))
        for _ in range(2):
            assert session.ask(ConsultRequest([1], 1, 30)).result().ids
        assert engine.asked == 3
        with pytest.raises(CloudUnavailable):
            session.ask(ConsultRequest([1], 1, 30)).result()
    assert engine.asked == 5


def test_equal_ids_keep_their_own_logprobs(engine: ScriptedEngine) -> None:
    rows = [
        {"id": token, "logprob": logprob, "top_logprobs": [{"id": token, "logprob": logprob}]}
        for token, logprob in [(5, -0.1), (7, -0.2), (5, -3.0)]
    ]
    reply = {"tokens": [5, 7, 5], "completion_probabilities": rows, "stop_type": "limit"}
    engine.replies["/completion"] = said(reply)
    found = consult(engine.url, n=3)
    assert found.logprobs == (-0.1, -0.2, -3.0)
    assert [top[0].logprob for top in found.top] == [-0.1, -0.2, -3.0]


def test_bad_addresses_are_one_sentence() -> None:
    for address in ("127.0.0.1:80", "ftp://127.0.0.1", "http://", "http://user:pass@127.0.0.1"):
        with pytest.raises(UsageError):
            LlamaServer(address)


def test_without_a_cloud_no_socket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket", refuse)
    monkeypatch.setattr("socket.create_connection", refuse)
    with Pair(cloud="none") as pair:
        assert pair.ask("Tell me about copper.", max_tokens=20).tokens


async def nothing() -> None:
    pass


async def after(seconds: float, value: int = 7) -> int:
    await asyncio.sleep(seconds)
    return value


@pytest.fixture
def thread() -> Iterator[IoThread]:
    made = IoThread("http://far")
    yield made
    made.close(nothing())


async def fails(error: BaseException) -> None:
    raise error


def test_what_goes_wrong_comes_back(thread: IoThread) -> None:
    with pytest.raises(CloudTimeout, match="'http://far'"):
        thread.submit(after(200), 0.05).result(60)
    with pytest.raises(ZeroDivisionError):
        thread.submit(fails(ZeroDivisionError("a bug")), 30).result(60)
    with pytest.raises(CloudUnavailable, match="'http://far'"):
        thread.submit(fails(asyncio.CancelledError()), 30).result(60)
    assert thread.submit(after(0.0), 30).result(60) == 7


def test_closing_gives_up_what_runs_and_then_hangs_up() -> None:
    order: list[str] = []

    async def note(what: str) -> None:
        order.append(what)

    async def long() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            order.append("given up")

    others = set(threading.enumerate())
    thread = IoThread("far")
    cancelled, flying = (thread.submit(long(), 300) for _ in range(2))
    thread.submit(nothing(), 60).result(60)
    assert cancelled.cancel()
    until(lambda: order == ["given up"])
    thread.close(note("last"))
    thread.close(note("again"))
    assert order == ["given up", "given up", "last"]
    # An answer that waits for it in another thread goes on without.
    with pytest.raises(CloudUnavailable):
        flying.result(0)
    with pytest.raises(CloudUnavailable):
        thread.submit(after(0.0), 30).result(60)
    # What else runs in this process is not its concern.
    assert not [one for one in set(threading.enumerate()) - others if one.name == "cloud"]


@pytest.mark.deep
@given(st.lists(st.floats(0, 0.01), min_size=1, max_size=8), st.floats(0, 0.01))
def test_whoever_submits_while_it_closes_gets_an_end(pauses: list[float], wait: float) -> None:
    """No future stays open, whenever it was asked for."""
    thread = IoThread("far")
    ends: list[object] = []

    def ask(pause: float) -> None:
        time.sleep(pause)
        try:
            ends.append(thread.submit(after(0.001), 30).result(60))
        except CloudUnavailable as error:
            ends.append(error)

    askers = [threading.Thread(target=ask, args=(pause,)) for pause in pauses]
    for asker in askers:
        asker.start()
    time.sleep(wait)
    thread.close(nothing())
    for asker in askers:
        asker.join(60)
    assert len(ends) == len(pauses)


def test_a_failure_of_what_was_given_up_is_no_alarm(thread: IoThread, caplog: Any) -> None:
    """Nobody asks its future any more, and asyncio says nothing of it either."""

    async def failing(error: Exception, begun: threading.Event) -> None:
        try:
            begun.set()
            await asyncio.sleep(20)
        finally:
            raise error

    for error in (CloudUnavailable("gone."), ZeroDivisionError("a bug")):
        begun = threading.Event()
        future = thread.submit(failing(error, begun), 30)
        assert begun.wait(60)
        assert future.cancel()
    thread.submit(after(0.01), 30).result(60)
    gc.collect()
    thread.submit(nothing(), 30).result(60)
    # But a bug is a bug.
    assert [record.name for record in caplog.records] == ["edgewise.cloud.engine"]
    assert "a bug" in caplog.text
