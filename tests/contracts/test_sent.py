"""What sessions say of their consults is what really travelled, for every backend."""

import time
from collections.abc import Iterator
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


def consult(session: CloudSession, ids: list[int], *, deadline: float = DEADLINE) -> Outgoing:
    sent = Outgoing()
    session.ask(ConsultRequest(ids, 1, deadline, sent=sent)).result()
    return sent


@pytest.fixture(params=DIALECTS)
def direct(request: pytest.FixtureRequest) -> Iterator[Watched]:
    engine = ScriptedEngine(dialect=request.param)
    with recording(engine.url) as recorder:
        cloud = open_engine(recorder.url, engine=request.param)
        cloud.check_vocabulary(ByteTokenizer())
        recorder.forget()
        yield Watched(cloud, recorder)
        cloud.close()
    engine.close()


@pytest.fixture
def through(engine: ScriptedEngine) -> Iterator[Watched]:
    with gateway([engine.url]) as running, recording(running.url) as recorder:
        cloud = GatewayCloud(recorder.url)
        cloud.check_vocabulary(ByteTokenizer())
        recorder.forget()
        yield Watched(cloud, recorder)
        cloud.close()


def test_an_engine_is_sent_the_whole_prefix(direct: Watched) -> None:
    session = direct.open()
    for ids in ([*PROMPT], [*PROMPT, 1, 2, 3], PROMPT[:5]):
        direct.recorder.forget()
        sent = consult(session, ids)
        assert sent.ids == len(ids)
        assert (sent.ids, sent.bytes) == (direct.recorder.ids, direct.recorder.size)
    assert session.prefetch([*PROMPT, 1, 2, 3, 4]) is None
    session.close()
    assert len(direct.recorder.messages) == 1


def test_a_gateway_is_sent_only_what_it_lacks(through: Watched) -> None:
    session = through.open()
    grown = [*PROMPT, *range(10)]
    back = [*PROMPT, 5, 6]
    for ids, new in ((PROMPT, len(PROMPT)), (grown, 10), (grown, 0), (back, 2), (PROMPT, 0)):
        through.recorder.forget()
        sent = consult(session, ids)
        assert sent.ids == new
        assert (sent.ids, sent.bytes) == (through.recorder.ids, through.recorder.size)
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


def test_after_a_reconnect_what_the_gateway_kept_does_not_travel(through: Watched) -> None:
    session = through.open()
    consult(session, PROMPT)
    through.recorder.cut()
    # The device learns of it in its next turns; until then it would hand bytes to a dead socket.
    time.sleep(0.5)
    through.recorder.forget()
    sent = consult(session, [*PROMPT, 1, 2])
    # The session is resumed with an open frame, whose bytes count.
    assert sent.ids == 2
    assert len(through.recorder.messages) == 2
    assert (sent.ids, sent.bytes) == (through.recorder.ids, through.recorder.size)
    session.close()


def test_a_gateway_that_asks_for_everything_costs_both_times(engine: ScriptedEngine) -> None:
    with gateway([engine.url], most_ids=1) as running, recording(running.url) as recorder:
        cloud = GatewayCloud(recorder.url)
        cloud.check_vocabulary(ByteTokenizer())
        session = cloud.open(Prompt(tuple(PROMPT)))
        consult(session, PROMPT)
        recorder.forget()
        sent = consult(session, [*PROMPT, 1])
        assert sent.ids == 1 + len(PROMPT) + 1
        assert (sent.ids, sent.bytes) == (recorder.ids, recorder.size)
        cloud.close()


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
