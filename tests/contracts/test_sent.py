"""What sessions say of their consults is what really travelled, for every backend."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest

from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.gateway import GatewayCloud
from edgewise.cloud.local import LocalCloud
from edgewise.completion import Outgoing
from edgewise.prompts import Prompt
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from tests.cloud.recording import Recorder, recording
from tests.doubles.engine_dialects import DIALECTS
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.running import gateway

PROMPT = list(b"a prompt of some length: ")
DEADLINE = 10.0


@dataclass
class Watched:
    """A cloud model behind a proxy that keeps what it is sent."""

    cloud: CloudModel
    recorder: Recorder

    def open(self) -> CloudSession:
        return self.cloud.open(Prompt(tuple(PROMPT)))

    def consult(self, session: CloudSession, ids: list[int]) -> int:
        """How many ids travelled for it, as it says and as is true."""
        self.recorder.forget()
        sent = consult(session, ids)
        assert (sent.ids, sent.bytes) == (self.recorder.ids, self.recorder.size)
        return sent.ids


def consult(session: CloudSession, ids: list[int]) -> Outgoing:
    sent = Outgoing()
    session.ask(ConsultRequest(ids, 1, DEADLINE, sent=sent)).result()
    return sent


@contextmanager
def watched(url: str, opening: Callable[[str], CloudModel]) -> Generator[Watched]:
    with recording(url) as recorder, closing(opening(recorder.url)) as cloud:
        cloud.check_vocabulary(ByteTokenizer())
        recorder.forget()
        yield Watched(cloud, recorder)


@pytest.fixture(params=DIALECTS)
def direct(request: pytest.FixtureRequest) -> Iterator[Watched]:
    name = request.param
    with (
        closing(ScriptedEngine(dialect=name)) as engine,
        watched(engine.url, lambda url: open_engine(url, engine=name)) as made,
    ):
        yield made


@pytest.fixture
def through(engine: ScriptedEngine) -> Iterator[Watched]:
    with gateway([engine.url]) as running, watched(running.url, GatewayCloud) as made:
        yield made


def test_an_engine_is_sent_the_whole_prefix(direct: Watched) -> None:
    session = direct.open()
    for ids in ([*PROMPT], [*PROMPT, 1, 2, 3], PROMPT[:5]):
        assert direct.consult(session, ids) == len(ids)
    assert session.prefetch([*PROMPT, 1, 2, 3, 4]) is None
    session.close()
    assert len(direct.recorder.messages) == 1


def test_a_gateway_is_sent_only_what_it_lacks(through: Watched) -> None:
    session = through.open()
    grown = [*PROMPT, *range(10)]
    back = [*PROMPT, 5, 6]
    for ids, new in ((PROMPT, len(PROMPT)), (grown, 10), (grown, 0), (back, 2), (PROMPT, 0)):
        assert through.consult(session, ids) == new
    through.recorder.cut()
    # The device learns of it in its next turns; until then it would hand bytes to a dead socket.
    time.sleep(0.5)
    # The session is resumed with an open frame, whose bytes count.
    assert through.consult(session, [*PROMPT, 1, 2]) == 2
    assert len(through.recorder.messages) == 2
    session.close()


def test_pushed_ids_do_not_travel_again(through: Watched) -> None:
    session = through.open()
    assert session.prefetch(PROMPT)
    ids = list(PROMPT)
    pushed = list[int]()
    for token in range(50):
        ids.append(token)
        pushed += [len(ids) - len(PROMPT)] if session.prefetch(ids) else []
    assert pushed == [16, 32, 48]
    sent = consult(session, ids)
    assert sent.ids == 2
    assert through.recorder.ids == len(ids)
    session.close()


def test_the_next_answer_sends_what_the_last_did_not(through: Watched) -> None:
    first = through.open()
    consult(first, [*PROMPT, 1])
    first.close()
    second = through.open()
    ids = [*PROMPT, 2, 3]
    deadline = time.monotonic() + 60
    # The link is given back in the background.
    while consult(second, ids).ids != 2:
        assert time.monotonic() < deadline
        second.close()
        second = through.open()
        ids = [*ids[:-2], ids[-2] + 1, 3]
    second.close()


def test_a_gateway_that_asks_for_everything_costs_both_times(engine: ScriptedEngine) -> None:
    with gateway([engine.url], most_ids=1) as running, watched(running.url, GatewayCloud) as made:
        session = made.open()
        consult(session, PROMPT)
        assert made.consult(session, [*PROMPT, 1]) == 1 + len(PROMPT) + 1


def test_an_engine_asked_again_over_a_new_connection_counts_both(engine: ScriptedEngine) -> None:
    cloud = LlamaServer(engine.url)
    session = cloud.open(Prompt(tuple(PROMPT)))
    alone = consult(session, PROMPT)
    number = engine.asked
    engine.fault = lambda asked: "reset" if asked == number else None
    twice = consult(session, PROMPT)
    assert (twice.ids, twice.bytes) == (2 * alone.ids, 2 * alone.bytes)
    cloud.close()


def test_a_model_in_this_process_is_sent_nothing() -> None:
    cloud = LocalCloud(ScriptedEdge(replying("yes", prompt="sky: ")))
    session = cloud.open(Prompt(tuple(b"sky: ")))
    assert session.prefetch(list(b"sky: ")) is None
    sent = consult(session, list(b"sky: "))
    assert (sent.ids, sent.bytes) == (0, 0)
    session.close()
    cloud.close()
