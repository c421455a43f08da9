"""The device's side of a gateway: what its sessions do in the background, and over bad links."""

import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from edgewise.cloud import gateway_link
from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.gateway import MOST_IDLE, PREFETCHED, GatewayCloud
from edgewise.completion import Outgoing
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    OtherVocabulary,
    VocabularyMismatch,
)
from edgewise.prompts import Prompt
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.wire.protocol import (
    MAX_DEADLINE,
    PATH,
    VERSION,
    VOCABULARY,
    Ask,
    Cancel,
    Close,
    Failed,
    FromDevice,
    NeedFull,
    Open,
    Opened,
    Prefetch,
    Reply,
    encode,
    from_device,
)
from tests.background import Served
from tests.gateway.processes import until

PROMPT = Prompt((1, 2, 3))
PATIENCE = 60.0
IDS = [1, 2, 3]
OPENED = Opened(VERSION, "name", 0, 0, "vLLM", "qwen")

Say = Callable[[web.WebSocketResponse, FromDevice], Awaitable[None]]


class FakeGateway(Served):
    """Answers frames as `say` does, from a thread of its own; `heard` are the devices' frames."""

    def __init__(self, say: Say, *, status: int | None = None) -> None:
        super().__init__()
        self.say, self.status, self.refusals = say, status, 0
        self.heard: list[FromDevice] = []
        self.listen()

    @property
    def asks(self) -> list[Ask]:
        return [frame for frame in self.heard if isinstance(frame, Ask)]

    def listen(self, port: int = 0) -> None:
        self.port = self.serve([web.get(PATH, self._session)], port=port)
        self.url = f"http://127.0.0.1:{self.port}"

    def count(self, kind: type[FromDevice]) -> int:
        """How many frames of a kind were heard."""
        return sum(isinstance(frame, kind) for frame in self.heard)

    async def _session(self, request: web.Request) -> web.StreamResponse:
        if self.status is not None:
            self.refusals += 1
            return web.Response(status=self.status)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            frame = from_device(message.data)
            self.heard.append(frame)
            await self.say(socket, frame)
        return socket


def cut(socket: web.WebSocketResponse) -> None:
    """Without a word."""
    assert socket._req is not None  # pyright: ignore[reportPrivateUsage]
    assert socket._req.transport is not None  # pyright: ignore[reportPrivateUsage]
    socket._req.transport.abort()  # pyright: ignore[reportPrivateUsage]


def reply(ask: Ask) -> Reply:
    return Reply(ask.ask, (97,) * ask.n, (-0.1,) * ask.n)


async def politely(socket: web.WebSocketResponse, frame: FromDevice) -> None:
    """As a gateway does."""
    if isinstance(frame, Ask):
        await socket.send_bytes(encode(reply(frame)))
    elif not isinstance(frame, Prefetch | Cancel):
        await socket.send_bytes(encode(OPENED))


def saying(*frames: Any) -> Say:
    """Politely, but to asks these, in turn, the last for ever."""
    left = list(frames)

    async def say(socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if not isinstance(frame, Ask):
            return await politely(socket, frame)
        made = left.pop(0) if len(left) > 1 else left[0]
        return await tell(socket, made(frame) if callable(made) else made)

    return say


async def tell(socket: web.WebSocketResponse, answer: Any) -> None:
    if answer == "hang up":
        await socket.close()
    elif isinstance(answer, str):
        await socket.send_str(answer)
    else:
        await socket.send_bytes(answer if isinstance(answer, bytes) else encode(answer))


class Telling(FakeGateway):
    """Politely, but replies have these fields; it `verifies` or not."""

    def __init__(self, fields: dict[str, Any], *, verifies: bool = False) -> None:
        super().__init__(self._say)
        self.fields, self._opened = fields, replace(OPENED, verifies=verifies)

    async def _say(self, socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if isinstance(frame, Ask):
            said = [17, frame.ask, *self.fields.values()]
            await socket.send_bytes(msgspec.msgpack.encode(said))
        elif not isinstance(frame, Prefetch):
            await socket.send_bytes(encode(self._opened))


def whatever_comes(answer: Any) -> Say:
    """The same to any frame; None is nothing."""

    async def say(socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if answer is not None:
            await tell(socket, answer)

    return say


Fake = Callable[..., FakeGateway]


@pytest.fixture
def fake() -> Iterator[Fake]:
    made: list[FakeGateway] = []

    def start(say: Say = politely, **more: Any) -> FakeGateway:
        made.append(FakeGateway(say, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def made(fake: Fake) -> FakeGateway:
    return fake()


@pytest.fixture
def cloud(made: FakeGateway) -> Iterator[GatewayCloud]:
    with closing(GatewayCloud(made.url)) as cloud:
        yield cloud


def consult(url: str, *, deadline: float = PATIENCE) -> Any:
    """The ids of one consult, or how it failed."""
    with closing(GatewayCloud(url)) as cloud:
        try:
            return cloud.open(PROMPT).ask(ConsultRequest(IDS, 1, deadline)).result().ids
        except CloudError as error:
            return error


def failing(reason: str) -> Say:
    return saying(lambda ask: Failed(ask.ask, reason, "No.", 250, "req-9"))


def test_a_completion_or_a_failure_comes_back(made: FakeGateway) -> None:
    for deadline, sent in ((60.0, 60_000), (700.0, MAX_DEADLINE)):
        assert consult(made.url, deadline=deadline) == (97,)
        ask = made.asks[-1]
        assert (ask.position, ask.ids, ask.n, ask.sampling) == (0, IDS, 1, None)
        assert sent - 60_000 < ask.deadline <= sent
    made.say = failing("unavailable")
    raised = consult(made.url)
    assert raised.request_id == "req-9"
    assert "250 ms" in str(raised)


another_vocabulary = whatever_comes(Failed(None, VOCABULARY, "Not the same ids."))

OF_REASONS = {"unavailable": CloudUnavailable, "timeout": CloudTimeout, "refused": CloudRefused}
OF_REASONS |= {"rejected": CloudRejected, "protocol": CloudProtocolError, "new": CloudProtocolError}
OF_STATUS = {401: CloudRefused, 403: CloudRefused, 429: CloudUnavailable, 503: CloudUnavailable}
OF_STATUS |= {404: CloudProtocolError, 200: CloudProtocolError}
ENDS: dict[str, tuple[Say | int, type[CloudError]]] = {
    **{reason: (failing(reason), error) for reason, error in OF_REASONS.items()},
    **{str(status): (status, error) for status, error in OF_STATUS.items()},
    "garbage": (saying(b"\xc1"), CloudProtocolError),
    "text": (saying("text"), CloudProtocolError),
    "opened twice": (saying(OPENED), CloudProtocolError),
    "never enough": (saying(lambda ask: NeedFull(ask.ask)), CloudProtocolError),
    "going away": (saying(Failed(None, "unavailable", "Bye.", 10)), CloudUnavailable),
    "always breaks": (saying("hang up"), CloudTimeout),
    "silent": (whatever_comes(None), CloudUnavailable),
    "another frame first": (whatever_comes(NeedFull(None)), CloudProtocolError),
    "another vocabulary": (another_vocabulary, OtherVocabulary),
    "hangs up": (whatever_comes("hang up"), CloudUnavailable),
    "what no terminal may show": (
        saying(Failed(None, "protocol", "No.\n\x1b[2J" + "x" * 100_000, None, "r\x1b")),
        CloudProtocolError,
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_gateway_that_fails_says_why(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(gateway_link, "OPEN_SECONDS", 0.2)
    does, error = ENDS[how]
    made = fake(status=does) if isinstance(does, int) else fake(does)
    again = issubclass(error, CloudTimeout | CloudUnavailable)  # until the deadline
    raised = consult(made.url, deadline=0.6 if again else 60.0)
    # The deadline may come in the middle of another attempt.
    assert type(raised) in ([error, CloudTimeout] if again else [error])
    assert str(raised).isprintable()
    assert len(str(raised)) < 1000


@pytest.mark.deep
@pytest.mark.parametrize("how", ["refused", "503"])
def test_a_link_is_tried_until_the_deadline(
    made: FakeGateway, cloud: GatewayCloud, how: str
) -> None:
    """A gateway that restarts refuses connections, or a proxy before it does."""
    session = cloud.open(PROMPT)
    assert session.ask(ConsultRequest(IDS, 1, PATIENCE)).result().ids == (97,)
    made.status = 503 if how == "503" else None
    made.hang_up()
    if how == "503":
        made.listen(made.port)
    asked = session.ask(ConsultRequest([*IDS, 4], 1, PATIENCE))
    if how == "503":
        until(lambda: made.refusals > 1)
        made.status = None
    else:
        time.sleep(0.3)
        made.listen(made.port)
    assert asked.result(PATIENCE).ids == (97,)
    made.hang_up()
    begun = time.monotonic()
    assert type(consult(made.url, deadline=1.0)) is CloudUnavailable
    assert time.monotonic() - begun > 0.5


def test_an_answer_that_comes_too_late_harms_nobody(made: FakeGateway, cloud: GatewayCloud) -> None:
    asked, cancelled = threading.Event(), threading.Event()

    async def say(socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if isinstance(frame, Cancel):
            await socket.send_bytes(encode(Reply(frame.ask, (1,), (None,))))
            cancelled.set()
        elif isinstance(frame, Ask) and frame.n == 1:
            asked.set()
        else:
            await politely(socket, frame)

    made.say = say
    session = cloud.open(PROMPT)
    given_up = session.ask(ConsultRequest(IDS, 1, PATIENCE))
    assert asked.wait(PATIENCE)
    given_up.cancel()
    assert session.ask(ConsultRequest(IDS, 2, PATIENCE)).result().ids == (97, 97)
    assert cancelled.wait(PATIENCE)


def test_a_consult_that_the_link_repeats_counts_twice(fake: Fake) -> None:
    """Also where a word may take several requests: the first of the next is no repetition."""
    sent = Outgoing()
    with closing(GatewayCloud(fake(saying("hang up", reply)).url)) as cloud:
        session = cloud.open(PROMPT)
        for counted in ((2, 1), (3, 1)):
            session.ask(ConsultRequest(IDS, 1, PATIENCE, sent=sent)).result()
            assert (sent.requests, sent.repeats) == counted


def test_conversations_leave_others_their_sessions(made: FakeGateway, cloud: GatewayCloud) -> None:
    """All begin alike, as templates do; each is sent its new ids and nothing twice."""
    talks = [[*range(24), *[100 + number] * 40] for number in range(4)]
    for turn in range(5):
        for talk in talks:
            with closing(cloud.open(Prompt(tuple(talk)))) as session:
                session.ask(ConsultRequest(talk, 1, PATIENCE)).result()
            talk.extend([turn] * 20)
    sent = sum(len(ask.ids) for ask in made.asks)
    assert sent == sum(len(talk) - 20 for talk in talks)


@pytest.mark.parametrize("at_a_time", [False, True])
def test_few_sessions_are_kept(made: FakeGateway, cloud: GatewayCloud, at_a_time: bool) -> None:
    many = 3 * MOST_IDLE
    sessions = [cloud.open(Prompt((number, number))) for number in range(many)]
    for number, session in enumerate(sessions):
        session.ask(ConsultRequest([number, number], 1, PATIENCE)).result()
        if not at_a_time:
            session.close()
    for session in sessions:
        session.close()
    if at_a_time:
        until(lambda: made.count(Close) == many - MOST_IDLE)
    assert made.count(Open) == (many if at_a_time else MOST_IDLE)


def test_a_ping_without_an_answer_is_a_broken_link(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    left = [True]

    async def say(socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if isinstance(frame, Ask) and left:
            left.clear()
            for _ in range(200):
                await socket.ping()
            cut(socket)
        else:
            await politely(socket, frame)

    assert consult(fake(say).url) == (97,)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_another_vocabulary_ends_the_program(made: FakeGateway, cloud: GatewayCloud) -> None:
    """Later, the gateway was replaced, it is a failed consult."""
    made.say = another_vocabulary
    with pytest.raises(VocabularyMismatch, match="one family"):
        cloud.check_vocabulary(ByteTokenizer())
    assert not cloud.links
    made.say = politely
    assert "vLLM engine has the same ids" in cloud.check_vocabulary(ByteTokenizer())
    assert cloud.identity() == f"{made.url} vLLM qwen"


def test_what_nobody_waits_for_is_logged(
    cloud: GatewayCloud, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A prefetch and a close have no caller that could hear of a bug in them."""

    async def broken(self: object, ids: list[int], sent: object) -> None:
        raise ZeroDivisionError("in a prefetch")

    def not_given(self: object, link: object) -> None:
        raise ZeroDivisionError("in a close")

    cloud.check_vocabulary(ByteTokenizer())
    monkeypatch.setattr(gateway_link.GatewayLink, "prefetch", broken)
    monkeypatch.setattr(GatewayCloud, "give", not_given)
    session = cloud.open(PROMPT)
    session.prefetch(IDS)
    session.close()
    cloud.close()
    raised = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert raised == ["in a prefetch", "in a close"]


def test_a_session_connects_when_it_asks_and_once(made: FakeGateway, cloud: GatewayCloud) -> None:
    silent = cloud.open(PROMPT)
    assert silent.prefetch([]) is None
    silent.close()
    time.sleep(0.05)
    assert not cloud.links
    assert made.heard == []
    session = cloud.open(PROMPT)
    for _ in range(5):
        # Given up before it ran.
        session.ask(ConsultRequest(IDS, 1, 30)).cancel()
    flying = [session.ask(ConsultRequest([*IDS, n], 1, 30)) for n in range(4)]
    assert all(future.result().ids for future in flying)
    assert len(cloud.links) == 1
    assert made.count(Open) == 1
    cloud.close()
    with pytest.raises(CloudUnavailable):
        silent.ask(ConsultRequest(IDS, 1, 30)).result()
    silent.prefetch(list(range(PREFETCHED)))
    silent.close()
