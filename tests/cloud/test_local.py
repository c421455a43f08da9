"""A cloud model in this process: its one thread, and what sessions leave behind."""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from edgewise.cloud.adapter.ids import Adapter
from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.local import LocalCloud, LocalSession
from edgewise.completion import Completion
from edgewise.edge.base import EdgeAbilities, Floats
from edgewise.errors import CloudError, CloudTimeout, CloudUnavailable, ModelError, UsageError
from edgewise.events import Consult, Pending, Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import SIZE, ByteTokenizer, ScriptedEdge, noise, replying
from tests.gateway.processes import until

IDS = list(b"sky: ")
PROMPT = Prompt(tuple(IDS))


class Held:
    """A script that writes so when it is let; `passes` have so many ids."""

    def __init__(self, text: str = "yes") -> None:
        self.let, self.asked = threading.Event(), threading.Event()
        self._script = replying(text, prompt="sky: ")
        self.passes: list[int] = []

    def __call__(self, ids: Sequence[int]) -> Floats:
        self.passes.append(len(ids))
        self.asked.set()
        assert self.let.wait(60)
        return self._script(ids)


@pytest.fixture
def script() -> Held:
    return Held()


@pytest.fixture
def model(script: Held) -> ScriptedEdge:
    return ScriptedEdge(script, context=64)


@pytest.fixture
def cloud(model: ScriptedEdge, script: Held) -> Iterator[LocalCloud]:
    with closing(LocalCloud(model)) as made:
        yield made
        script.let.set()


class Padded(ByteTokenizer):
    """As models of one family are: the largest has more ids that stand for nothing."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def piece(self, token: int) -> bytes:
        if token >= self.size:
            raise UsageError(f"no id {token}")
        return super().piece(token) if token < SIZE else b""


@pytest.mark.parametrize("verify", ["off", "on"])
@pytest.mark.parametrize("padding", [SIZE, SIZE + 1])
def test_an_id_that_the_edge_does_not_define_fails_the_consult(padding: int, verify: Any) -> None:
    def script(ids: Sequence[int]) -> Floats:
        likely = {97: 1.0, SIZE + 1: 0.5} | {padding: 5.0 * (len(ids) % 5 == 4)}
        return np.array([likely.get(token, -10.0) for token in range(SIZE + 2)], np.float32)

    def alone(ids: Sequence[int]) -> Floats:
        return np.append(noise()(ids), np.float32(-20.0))

    edge = ScriptedEdge(alone, tokenizer=Padded(SIZE + 1))
    with closing(LocalCloud(ScriptedEdge(script, tokenizer=Padded(SIZE + 2)))) as cloud:
        cloud.check_vocabulary(edge.tokenizer)
        policy = Policy(threshold=0.0, span=1, verify=verify)
        decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)
        with decoder.stream(IDS, max_tokens=12) as stream:
            events = list(stream)
    outcomes = {event.outcome for event in events if isinstance(event, Consult)}
    tokens = [event for event in events if isinstance(event, Token)]
    assert outcomes == {"answered", "protocol"}
    assert len(tokens) == 12
    assert all(one.id <= SIZE for token in tokens for one in token.cloud or ())


def busy(cloud: LocalCloud, script: Held) -> "Future[Completion]":
    """A consult that holds the thread."""
    flying = cloud.open(PROMPT).ask(ConsultRequest(IDS, 1, 20))
    assert script.asked.wait(60)
    return flying


def test_opening_waits_for_nobody(cloud: LocalCloud, script: Held, model: ScriptedEdge) -> None:
    flying = busy(cloud, script)
    sessions = [cloud.open(PROMPT) for _ in range(20)]
    for session in sessions:
        assert session.prefetch(IDS) is None
        session.close()
    assert not flying.done()
    # One is the consult's own.
    assert model.sessions == 1
    script.let.set()
    session = cloud.open(PROMPT)
    assert session.ask(ConsultRequest(IDS, 4, 30)).result().ids == (*b"yes", 256)
    assert model.sessions == 2
    session.close()
    session.close()
    until(lambda: model.sessions == 1)


def test_a_session_closed_before_its_consult_ran_takes_no_place(
    cloud: LocalCloud, model: ScriptedEdge, script: Held
) -> None:
    flying = busy(cloud, script)
    session = cloud.open(PROMPT)
    waiting = session.ask(ConsultRequest(IDS, 1, 30))
    session.close()
    script.let.set()
    for future in (waiting, session.ask(ConsultRequest(IDS, 1, 30))):
        with pytest.raises(CloudUnavailable):
            future.result()
    assert flying.result().ids
    assert model.sessions == 1


def test_a_consult_that_waited_too_long_does_not_run(cloud: LocalCloud, script: Held) -> None:
    busy(cloud, script)
    late = cloud.open(PROMPT).ask(ConsultRequest(IDS, 1, 0.05))
    time.sleep(0.1)
    script.let.set()
    with pytest.raises(CloudTimeout, match="deadline"):
        late.result()


def test_an_answer_left_is_no_timeout(script: Held, cloud: LocalCloud, model: ScriptedEdge) -> None:
    """Deadlines of other answers would be doubled for it."""
    decoder = Decoder(
        ScriptedEdge(replying("yes", prompt="sky: ")),
        router=Constant(1.0),
        policy=Policy(speculate=2, span=2),
        cloud=cloud,
    )
    for _ in range(4):
        with decoder.stream(IDS, pending=True) as events:
            assert isinstance(next(events), Pending)
            assert script.asked.wait(20)
        script.asked.clear()
        script.let.set()
        until(lambda: model.sessions == 0)
        script.let.clear()
    assert decoder.tiers[0].latency.timeouts == 0
    assert not decoder.tiers[0].breaker.is_open


@pytest.mark.parametrize("adapted", [False, True])
def test_a_slow_model_has_the_users_deadline(
    monkeypatch: pytest.MonkeyPatch, adapted: bool
) -> None:
    script, deadlines, ask = replying("yes", prompt="sky: "), list[float](), LocalSession.ask

    def noted(self: LocalSession, request: ConsultRequest) -> "Future[Completion]":
        deadlines.append(request.deadline)
        return ask(self, request)

    monkeypatch.setattr(LocalSession, "ask", noted)
    local = LocalCloud(ScriptedEdge(script))
    adapter = Adapter(local, own=ByteTokenizer(), edge=ByteTokenizer())
    with closing(adapter if adapted else local) as cloud:
        for deadline in (None, 20.0):
            policy = Policy(threshold=0.5, deadline=deadline)
            decoder = Decoder(
                ScriptedEdge(script), router=Constant(1.0), policy=policy, cloud=cloud
            )
            assert decoder.generate(IDS).text == "yes"
    assert deadlines[0] == math.inf
    assert deadlines[-1] <= 20.0


def test_closing_in_mid_answer_is_a_cloud_error_like_any_other() -> None:
    begun = threading.Event()

    def slow(ids: Sequence[int]) -> Floats:
        begun.set()
        time.sleep(0.01)
        return replying("x" * 9000, prompt="sky: ")(ids)

    cloud = LocalCloud(ScriptedEdge(slow, context=10_000))
    flying = cloud.open(PROMPT).ask(ConsultRequest(IDS, 9000, math.inf))
    waiting = cloud.open(PROMPT).ask(ConsultRequest(IDS, 1, math.inf))
    assert begun.wait(20)
    cloud.close()
    for future in (flying, waiting):
        with pytest.raises(CloudUnavailable):
            future.result(0)


def test_a_model_that_fails_or_takes_too_long_is_a_cloud_that_failed() -> None:
    def failing(ids: Sequence[int]) -> Floats:
        raise ModelError("the weights are gone", hint="load them again")

    def slow(ids: Sequence[int]) -> Floats:
        time.sleep(0.1)
        return replying("x" * 100, prompt="sky: ")(ids)

    for script, error in ((failing, CloudError), (slow, CloudTimeout)):
        with closing(LocalCloud(ScriptedEdge(script))) as cloud:
            asked = cloud.open(PROMPT).ask(ConsultRequest(IDS, 100, 0.05))
            with pytest.raises(error) as found:
                asked.result()
        assert script is slow or "weights are gone" in str(found.value)


def test_a_consult_that_is_cancelled_ends_at_its_next_token() -> None:
    held = Held("x" * 99)
    with closing(LocalCloud(ScriptedEdge(held))) as cloud:
        session = cloud.open(PROMPT)
        running, waiting = (session.ask(ConsultRequest(IDS, 20, 60)) for _ in range(2))
        assert held.asked.wait(60)
        assert running.cancel()
        assert waiting.cancel()
        held.let.set()
        assert session.ask(ConsultRequest(IDS, 1, 60)).result().ids == (*b"x",)
    assert held.passes == [len(IDS)]


@pytest.mark.parametrize(("n", "written"), [(2, 2), (3, 3), (4, 4), (9, 4)])
def test_a_completion_ends_with_the_context(n: int, written: int) -> None:
    """Its last id may stand behind it: nothing is computed after that."""
    model = ScriptedEdge(replying("so it is", prompt="sky: "), context=len(IDS) + 3)
    with closing(LocalCloud(model)) as cloud, closing(cloud.open(PROMPT)) as session:
        completion = session.ask(ConsultRequest(IDS, n, 20)).result()
    assert bytes(completion.ids).decode() == "so it is"[:written]
    assert not completion.stopped


def test_a_consult_waits_for_room_and_the_end_waits_for_neither(script: Held) -> None:
    cloud = LocalCloud(ScriptedEdge(script, context=64, abilities=EdgeAbilities(slots=1)))
    first, second, third = (cloud.open(PROMPT) for _ in range(3))
    held = first.ask(ConsultRequest(IDS, 1, 60))
    assert script.asked.wait(60)
    waiting = second.ask(ConsultRequest(IDS, 1, 60))
    script.let.set()
    assert held.result().ids
    first.close()
    assert waiting.result().ids
    with pytest.raises(CloudTimeout):
        third.ask(ConsultRequest(IDS, 1, 0.05)).result()
    left = third.ask(ConsultRequest(IDS, 1, 600))
    cloud.close()
    with pytest.raises(CloudUnavailable):
        left.result(0)
