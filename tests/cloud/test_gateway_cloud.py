"""The device's side of a gateway: what its sessions do in the background, and over bad links."""

import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from aiohttp import web

from edgewise.cloud import gateway_link as gateway_link
from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.gateway import MOST_IDLE, PREFETCHED, GatewayCloud
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
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

    def listen(self, port: int = 0) -> None:
        self.port = self.serve([web.get(PATH, self._session)], port=port)
        self.url = f"http://127.0.0.1:{self.port}"

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
        answer = made(frame) if callable(made) else made
        if answer == "hang up":
            await socket.close()
        elif isinstance(answer, str):
            await socket.send_str(answer)
        else:
            await socket.send_bytes(answer if isinstance(answer, bytes) else encode(answer))
        return None

    return say


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeGateway]]:
    made: list[FakeGateway] = []

    def start(say: Say = politely, **more: Any) -> FakeGateway:
        made.append(FakeGateway(say, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


def consult(url: str, *, deadline: float = 60.0) -> Any:
    """The ids of one consult, or how it failed."""
    cloud = GatewayCloud(url)
    try:
        return cloud.open(PROMPT).ask(ConsultRequest(IDS, 1, deadline)).result().ids
    except CloudError as error:
        return error
    finally:
        cloud.close()


def test_a_completion_comes_back(fake: Callable[..., FakeGateway]) -> None:
    made = fake()
    assert consult(made.url) == (97,)
    _, ask = made.heard[:2]
    assert isinstance(ask, Ask)
    assert (ask.position, ask.ids, ask.n, ask.sampling) == (0, IDS, 1, None)
    assert 0 < ask.deadline <= 60_000


def failing(reason: str) -> Say:
    return saying(lambda ask: Failed(ask.ask, reason, "No.", 250, "req-9"))


def test_a_failure_has_its_patience_and_request(fake: Callable[..., FakeGateway]) -> None:
    raised = consult(fake(failing("unavailable")).url)
    assert raised.request_id == "req-9"
    assert "250 ms" in str(raised)


async def silent(socket: web.WebSocketResponse, frame: FromDevice) -> None:
    pass


async def other_first(socket: web.WebSocketResponse, frame: FromDevice) -> None:
    await socket.send_bytes(encode(NeedFull(None)))


async def hangs_up(socket: web.WebSocketResponse, frame: FromDevice) -> None:
    await socket.close()


async def another_vocabulary(socket: web.WebSocketResponse, frame: FromDevice) -> None:
    await socket.send_bytes(encode(Failed(None, VOCABULARY, "Not the same ids.")))


ENDS: dict[str, tuple[Say | int, type[CloudError]]] = {
    "unavailable": (failing("unavailable"), CloudUnavailable),
    "timeout": (failing("timeout"), CloudTimeout),
    "refused": (failing("refused"), CloudRefused),
    "rejected": (failing("rejected"), CloudRejected),
    "protocol": (failing("protocol"), CloudProtocolError),
    "a new reason": (failing("something new"), CloudProtocolError),
    "garbage": (saying(b"\xc1"), CloudProtocolError),
    "text": (saying("text"), CloudProtocolError),
    "opened twice": (saying(OPENED), CloudProtocolError),
    "never enough": (saying(lambda ask: NeedFull(ask.ask)), CloudProtocolError),
    "going away": (saying(Failed(None, "unavailable", "Bye.", 10)), CloudUnavailable),
    "always breaks": (saying("hang up"), CloudTimeout),
    "401": (401, CloudRefused),
    "403": (403, CloudRefused),
    "429": (429, CloudUnavailable),
    "503": (503, CloudUnavailable),
    "404": (404, CloudProtocolError),
    "200": (200, CloudProtocolError),
    "silent": (silent, CloudUnavailable),
    "another frame first": (other_first, CloudProtocolError),
    "hangs up": (hangs_up, CloudUnavailable),
    "what no terminal may show": (
        saying(Failed(None, "protocol", "No.\n\x1b[2J" + "x" * 100_000, None, "r\x1b")),
        CloudProtocolError,
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_gateway_that_fails_says_why(
    fake: Callable[..., FakeGateway], monkeypatch: pytest.MonkeyPatch, how: str
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


def test_a_whole_prefix_is_sent_where_it_is_asked_for(fake: Callable[..., FakeGateway]) -> None:
    made = fake(saying(lambda ask: NeedFull(ask.ask), reply))
    assert consult(made.url) == (97,)
    asks = [frame for frame in made.heard if isinstance(frame, Ask)]
    assert [(ask.position, ask.ids) for ask in asks] == [(0, IDS), (0, IDS)]


def test_a_link_that_breaks_is_made_anew(fake: Callable[..., FakeGateway]) -> None:
    made = fake(saying("hang up", "hang up", reply))
    assert consult(made.url) == (97,)
    openings = [frame for frame in made.heard if not isinstance(frame, Ask | Prefetch | Cancel)]
    assert [opening.session for opening in openings[:3]] == ["", "name", "name"]


@pytest.mark.parametrize("how", ["refused", "503"])
def test_a_link_that_cannot_be_made_is_tried_until_the_deadline(
    fake: Callable[..., FakeGateway], how: str
) -> None:
    """A gateway that restarts refuses connections, or a proxy before it does."""
    made = fake()
    with closing(GatewayCloud(made.url)) as cloud:
        session = cloud.open(PROMPT)
        assert session.ask(ConsultRequest(IDS, 1, PATIENCE)).result().ids == (97,)
        made.status = 503 if how == "503" else None
        made.hang_up()
        if how == "503":
            made.listen(made.port)
        asked = session.ask(ConsultRequest([*IDS, 4], 1, PATIENCE))
        if how == "503":
            while made.refusals < 2:
                time.sleep(0.01)
            made.status = None
        else:
            time.sleep(0.3)
            made.listen(made.port)
        assert asked.result(PATIENCE).ids == (97,)


def test_a_gateway_that_stays_away_is_told_as_that(fake: Callable[..., FakeGateway]) -> None:
    made = fake()
    made.hang_up()
    begun = time.monotonic()
    assert type(consult(made.url, deadline=1.0)) is CloudUnavailable
    assert time.monotonic() - begun > 0.5


def test_an_answer_that_comes_too_late_harms_nobody(fake: Callable[..., FakeGateway]) -> None:
    asked, cancelled = threading.Event(), threading.Event()

    async def say(socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if isinstance(frame, Cancel):
            await socket.send_bytes(encode(Reply(frame.ask, (1,), (None,))))
            cancelled.set()
        elif isinstance(frame, Ask) and frame.n == 1:
            asked.set()
        else:
            await politely(socket, frame)

    with closing(GatewayCloud(fake(say).url)) as cloud:
        session = cloud.open(PROMPT)
        given_up = session.ask(ConsultRequest(IDS, 1, PATIENCE))
        assert asked.wait(PATIENCE)
        given_up.cancel()
        assert session.ask(ConsultRequest(IDS, 2, PATIENCE)).result().ids == (97, 97)
        assert cancelled.wait(PATIENCE)


def test_conversations_leave_each_other_their_sessions(fake: Callable[..., FakeGateway]) -> None:
    """All begin alike, as templates do; each is sent its new ids and nothing twice."""
    made = fake()
    talks = [[*range(24), *[100 + number] * 40] for number in range(4)]
    with closing(GatewayCloud(made.url)) as cloud:
        for turn in range(5):
            for talk in talks:
                with closing(cloud.open(Prompt(tuple(talk)))) as session:
                    session.ask(ConsultRequest(talk, 1, PATIENCE)).result()
                talk.extend([turn] * 20)
    sent = sum(len(frame.ids) for frame in made.heard if isinstance(frame, Ask))
    assert sent == sum(len(talk) - 20 for talk in talks)


def test_sessions_that_are_kept_are_few(fake: Callable[..., FakeGateway]) -> None:
    made = fake()
    with closing(GatewayCloud(made.url)) as cloud:
        for number in range(3 * MOST_IDLE):
            with closing(cloud.open(Prompt((number, number)))) as session:
                session.ask(ConsultRequest([number, number], 1, PATIENCE)).result()
    assert sum(isinstance(frame, Open) for frame in made.heard) == MOST_IDLE


def test_sessions_of_answers_at_a_time_are_given_back(fake: Callable[..., FakeGateway]) -> None:
    made, many = fake(), 2 * MOST_IDLE
    with closing(GatewayCloud(made.url)) as cloud:
        sessions = [cloud.open(Prompt((number, number))) for number in range(many)]
        for number, session in enumerate(sessions):
            session.ask(ConsultRequest([number, number], 1, PATIENCE)).result()
        for session in sessions:
            session.close()
        until(lambda: sum(isinstance(one, Close) for one in made.heard) == many - MOST_IDLE)


def test_a_longer_deadline_is_sent_as_the_longest(fake: Callable[..., FakeGateway]) -> None:
    made = fake()
    with closing(GatewayCloud(made.url)) as cloud, closing(cloud.open(Prompt((1,)))) as session:
        session.ask(ConsultRequest([1], 1, 700.0)).result()
    (asked,) = [frame for frame in made.heard if isinstance(frame, Ask)]
    assert asked.deadline == MAX_DEADLINE


def test_a_ping_that_cannot_be_answered_is_a_broken_link(
    fake: Callable[..., FakeGateway], caplog: pytest.LogCaptureFixture
) -> None:
    left = [True]

    async def say(socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if isinstance(frame, Ask) and left:
            left.clear()
            for _ in range(200):
                await socket.ping()
            assert socket._req is not None  # pyright: ignore[reportPrivateUsage]
            assert socket._req.transport is not None  # pyright: ignore[reportPrivateUsage]
            socket._req.transport.abort()  # pyright: ignore[reportPrivateUsage]
        else:
            await politely(socket, frame)

    assert consult(fake(say).url, deadline=PATIENCE) == (97,)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_another_vocabulary_is_known_by_its_reason(fake: Callable[..., FakeGateway]) -> None:
    """At the check it ends the program; later, the gateway was replaced, it is a failed consult."""
    made = fake()
    cloud = GatewayCloud(made.url)
    made.say = another_vocabulary
    with pytest.raises(VocabularyMismatch, match="one family"):
        cloud.check_vocabulary(ByteTokenizer())
    assert not cloud.links
    made.say = politely
    assert "vLLM engine has the same ids" in cloud.check_vocabulary(ByteTokenizer())
    assert cloud.identity() == f"{made.url} vLLM qwen"
    cloud.close()
    made.say = another_vocabulary
    assert isinstance(consult(made.url), CloudRejected)


@pytest.fixture
def made(fake: Callable[..., FakeGateway]) -> FakeGateway:
    return fake()


@pytest.fixture
def cloud(made: FakeGateway) -> Iterator[GatewayCloud]:
    with closing(GatewayCloud(made.url)) as cloud:
        cloud.check_vocabulary(ByteTokenizer())
        yield cloud


def test_what_nobody_waits_for_is_logged(
    cloud: GatewayCloud, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A prefetch and a close have no caller that could hear of a bug in them."""

    async def broken(self: object, ids: list[int], sent: object) -> None:
        raise ZeroDivisionError("in a prefetch")

    def not_given(self: object, link: object) -> None:
        raise ZeroDivisionError("in a close")

    monkeypatch.setattr(gateway_link.GatewayLink, "prefetch", broken)
    monkeypatch.setattr(GatewayCloud, "give", not_given)
    session = cloud.open(PROMPT)
    session.prefetch(IDS)
    session.close()
    cloud.close()
    raised = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert raised == ["in a prefetch", "in a close"]


def test_nothing_is_connected_for_a_session_that_says_nothing(made: FakeGateway) -> None:
    with closing(GatewayCloud(made.url)) as cloud:
        session = cloud.open(PROMPT)
        assert session.prefetch([]) is None
        session.close()
        time.sleep(0.05)
        assert not cloud.links
    assert made.heard == []
    with pytest.raises(CloudUnavailable):
        session.ask(ConsultRequest(IDS, 1, 30)).result()
    session.prefetch(list(range(PREFETCHED)))
    session.close()
    cloud.close()


def test_consults_in_flight_share_one_link(made: FakeGateway, cloud: GatewayCloud) -> None:
    session = cloud.open(PROMPT)
    for _ in range(5):
        # Given up before it ran.
        session.ask(ConsultRequest(IDS, 1, 30)).cancel()
    flying = [session.ask(ConsultRequest([*IDS, n], 1, 30)) for n in range(4)]
    assert all(future.result().ids for future in flying)
    assert len(cloud.links) == 1
    assert sum(isinstance(frame, Open) for frame in made.heard) == 1
