"""Verification by a cloud that is somewhere else: what travels, what is believed, what breaks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.gateway import GatewayCloud
from edgewise.completion import Completion, Outgoing, Verified
from edgewise.edge.base import Floats
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRejected,
    CloudUnavailable,
    OtherVocabulary,
)
from edgewise.events import Event, Token
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant
from edgewise.sampling import Sampling
from edgewise.testing.link import Link
from edgewise.testing.scripted_edge import SIZE, ByteTokenizer, ScriptedEdge
from edgewise.wire.protocol import MAX_SPAN, VERSION, Ask, FromDevice, Prefetch, encode, packed
from tests.cloud.test_gateway_cloud import FakeGateway, politely
from tests.gateway.doubles import PlainEngine, VerifyingEngine, own_id, read_along
from tests.gateway.running import device, gateway

BYTES, DEADLINE = ByteTokenizer(), 60.0
PROMPT = list(b"Where?")
IDS = [*PROMPT, own_id(PROMPT), 33, 34]
COUNT = 3


def verification(
    ids: Sequence[int] = IDS, count: int = COUNT, deadline: float = DEADLINE, **more: Any
) -> ConsultRequest:
    return ConsultRequest(ids, 0, deadline, verify=count, **more)


def asked(cloud: CloudModel, request: ConsultRequest) -> Completion:
    with closing(cloud.open(Prompt(tuple(PROMPT)))) as session:
        return session.ask(request).result(2 * DEADLINE)


class OldFrames(FakeGateway):
    """A gateway of before: it opens and replies without the trailing elements."""

    def __init__(self) -> None:
        super().__init__(self._say)

    async def _say(self, socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if isinstance(frame, Ask):
            await socket.send_bytes(encode([17, frame.ask, [97], [-0.5], False, 1, 1, 0.1, []]))
        elif not isinstance(frame, Prefetch):
            await socket.send_bytes(encode([16, VERSION, "name", 0, 0, "vLLM", "qwen"]))


def directly(stack: ExitStack, engine: VerifyingEngine) -> CloudModel:
    cloud = stack.enter_context(closing(EngineCloud(engine)))
    cloud.check_vocabulary(BYTES)
    return cloud


def through_a_gateway(stack: ExitStack, engine: VerifyingEngine) -> CloudModel:
    return stack.enter_context(device(stack.enter_context(gateway([engine]))))


@pytest.fixture
def engine() -> VerifyingEngine:
    return VerifyingEngine()


@pytest.fixture(params=[directly, through_a_gateway])
def cloud(request: pytest.FixtureRequest, engine: VerifyingEngine) -> Iterator[CloudModel]:
    with ExitStack() as stack:
        yield request.param(stack, engine)


def test_the_engine_says_what_it_thinks_of_each_id(cloud: CloudModel) -> None:
    assert cloud.verifies
    for count in (COUNT, 1, len(IDS) - 1):
        completion = asked(cloud, verification(count=count))
        assert completion.verified == read_along(IDS, count).verified
        assert (completion.ids, completion.logprobs, completion.stopped) == ((), (), False)
    ratios = [one.ratio for one in asked(cloud, verification()).verified]
    assert ratios[0] == 1
    assert max(ratios[1:]) < 0.02


def test_a_session_verifies_and_writes_in_turn(cloud: CloudModel) -> None:
    with closing(cloud.open(Prompt(tuple(PROMPT)))) as session:
        ids = list(PROMPT)
        for _ in range(4):
            ids += session.ask(ConsultRequest(ids, 1, DEADLINE)).result().ids
            ids += [33]
            verified = session.ask(verification(ids, 2)).result().verified
            assert verified == read_along(ids, 2).verified
            assert [verified[0].id, verified[0].ratio] == [ids[-2], 1]


def test_the_sampling_of_an_answer_goes_with_it(
    engine: VerifyingEngine, monkeypatch: pytest.MonkeyPatch, cloud: CloudModel
) -> None:
    seen: list[Sampling] = []

    async def verify(ids: Any, count: int, sampling: Sampling, client: Any = None) -> Completion:
        seen.append(sampling)
        return read_along(ids, count)

    monkeypatch.setattr(engine, "verify", verify)
    drawn = Sampling(temperature=0.7, top_k=9, seed=5)
    asked(cloud, verification(sampling=drawn))
    assert packed(seen[0]) == packed(drawn)


@pytest.mark.parametrize("error", [CloudUnavailable("away"), CloudRejected("no")])
def test_an_engine_that_fails_says_why(
    engine: VerifyingEngine, cloud: CloudModel, error: CloudError
) -> None:
    def fails(ids: Sequence[int], n: int) -> Completion:
        raise error

    engine.reads = fails
    with pytest.raises(type(error)):
        asked(cloud, verification(deadline=1.0))
    engine.reads = read_along
    assert asked(cloud, verification()).verified


@pytest.mark.parametrize("of", [lambda: EngineCloud(PlainEngine()), None])
def test_one_that_cannot_verify_says_so(of: Callable[[], EngineCloud] | None) -> None:
    with ExitStack() as stack:
        if of:
            cloud: CloudModel = stack.enter_context(closing(of()))
            cloud.check_vocabulary(BYTES)
        else:
            running = stack.enter_context(gateway([PlainEngine()]))
            cloud = stack.enter_context(device(running))
        assert not cloud.verifies
        with pytest.raises(CloudRejected, match="cannot verify"):
            asked(cloud, verification())


def test_an_exact_answer_is_the_engines_own(cloud: CloudModel) -> None:
    exactly(cloud)


def test_nothing_is_asked_of_a_gateway_of_before() -> None:
    with closing(OldFrames()) as old, closing(GatewayCloud(old.url)) as cloud:
        cloud.check_vocabulary(BYTES)
        assert not cloud.verifies
        session, sent = cloud.open(Prompt(tuple(PROMPT))), Outgoing()
        with pytest.raises(CloudRejected, match="cannot verify"):
            session.ask(verification(sent=sent)).result()
        assert not [frame for frame in old.heard if isinstance(frame, Ask)]
        assert (sent.ids, sent.requests) == (0, 0)
        completion = session.ask(ConsultRequest(IDS, 1, DEADLINE)).result()
        assert (completion.ids, completion.verified) == ((97,), ())
        # The ids that were to be verified had not been sent, and are now.
        assert old.heard[-1].ids == IDS  # pyright: ignore[reportAttributeAccessIssue]


def test_more_than_a_gateway_takes_is_not_sent(engine: VerifyingEngine) -> None:
    with gateway([engine]) as running, device(running) as cloud:
        with pytest.raises(CloudRejected, match=str(MAX_SPAN)):
            asked(cloud, verification([1] * (MAX_SPAN + 9), MAX_SPAN + 1))
        assert len(asked(cloud, verification([1] * (MAX_SPAN + 9), MAX_SPAN)).verified) == MAX_SPAN


GOOD = [-4.5, 98, -0.25]
NO_LOGPROBS = [float("nan"), float("inf"), float("-inf"), 0.5, 1e308, "1", None, True, []]
LIES: list[dict[str, Any]] = [
    *({"verified": rows} for rows in ([], [GOOD], [GOOD] * 3, [GOOD] * 50_000, None, "no", 1)),
    *({"verified": [GOOD, row]} for row in ([], [-4.5], [-4.5, 98], [*GOOD, 1], None, {}, 7)),
    *({"verified": [GOOD, [value, 98, -0.25]]} for value in NO_LOGPROBS),
    *({"verified": [GOOD, [-4.5, 98, value]]} for value in NO_LOGPROBS),
    *(
        {"verified": [GOOD, [-4.5, value, -0.25]]}
        for value in (-1, SIZE, 1 << 31, 1 << 32, 1 << 63, 1.5, "97", None, True)
    ),
    {"verified": [GOOD, [-0.25, 98, -4.5]]},
    {"ids": [97], "logprobs": [-0.5]},
    {"ids": [97], "logprobs": [-0.5], "stopped": True},
    {"logprobs": [-0.5]},
    {"top": [[[97, -0.5]]]},
    {"cached": 2 * len(IDS) + 1},
]


class Liar(FakeGateway):
    """Verifies, and says what it is told."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self.lie: dict[str, Any] = {}

    async def _say(self, socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if isinstance(frame, Ask):
            said: dict[str, Any] = {
                "ids": [],
                "logprobs": [],
                "stopped": False,
                "cached": 1,
                "computed": 2,
                "seconds": 0.1,
                "top": [],
                "verified": [GOOD, GOOD],
                **self.lie,
            }
            await socket.send_bytes(msgspec.msgpack.encode([17, frame.ask, *said.values()]))
        elif not isinstance(frame, Prefetch):
            await socket.send_bytes(encode([16, VERSION, "name", 0, 0, "vLLM", "qwen", True]))


def test_every_lie_of_a_gateway_is_a_failed_consult() -> None:
    believed: list[dict[str, Any]] = []
    with closing(Liar()) as liar, closing(GatewayCloud(liar.url)) as cloud:
        cloud.check_vocabulary(BYTES)
        for liar.lie in LIES:
            try:
                asked(cloud, verification(count=2))
            except CloudProtocolError:
                continue
            believed.append(liar.lie)
        assert believed == []
        liar.lie = {}
        assert asked(cloud, verification(count=2)).verified == (Verified(*GOOD),) * 2
        # Nobody asked to have something verified.
        liar.lie = {"ids": [97], "logprobs": [-0.5]}
        with pytest.raises(CloudProtocolError):
            asked(cloud, ConsultRequest(IDS, 1, DEADLINE))


class Gap(ByteTokenizer):
    """Has an id that stands for nothing."""

    def piece(self, token: int) -> bytes:
        return b"" if token == 98 else super().piece(token)


def test_a_choice_that_the_edge_vocabulary_does_not_define_is_refused() -> None:
    with closing(Liar()) as liar, closing(GatewayCloud(liar.url)) as cloud:
        cloud.check_vocabulary(Gap())
        with pytest.raises(CloudProtocolError, match="98"):
            asked(cloud, verification(count=2))


class Cutting(FakeGateway):
    """Says what a `VerifyingEngine` does, but hangs up at some frames, having answered or not."""

    def __init__(self, at: set[int], *, answers: bool) -> None:
        super().__init__(self._say)
        self.at, self.answers, self.held = at, answers, list[int]()

    async def _say(self, socket: web.WebSocketResponse, frame: FromDevice) -> None:
        cut = len(self.heard) - 1 in self.at
        if not cut or self.answers:
            await self._answer(socket, frame)
        if cut:
            assert socket._req is not None  # pyright: ignore[reportPrivateUsage]
            assert socket._req.transport is not None  # pyright: ignore[reportPrivateUsage]
            socket._req.transport.abort()  # pyright: ignore[reportPrivateUsage]

    async def _answer(self, socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if isinstance(frame, Ask):
            self.held[frame.position :] = frame.ids
            said = [list(msgspec.structs.astuple(one)) for one in self._verified(frame.verify)]
            reply = [17, frame.ask, [], [], False, None, None, None, [], said]
            await socket.send_bytes(encode(reply))
        elif not isinstance(frame, Prefetch):
            self.held = []
            await socket.send_bytes(encode([16, VERSION, "name", 0, 0, "vLLM", "qwen", True]))

    def _verified(self, count: int) -> Sequence[Verified]:
        return read_along(self.held, count).verified


def blocks(cloud: CloudModel, between: Callable[[int], None] = lambda number: None) -> None:
    """Verifies an answer in blocks, after a correction each; all that is said must be right."""
    with closing(cloud.open(Prompt(tuple(PROMPT)))) as session:
        ids = list(PROMPT)
        for number in range(4):
            between(number)
            block = [*ids, own_id(ids), 33, 34]
            verified = session.ask(verification(block, 3)).result(2 * DEADLINE).verified
            assert verified == read_along(block, 3).verified
            # The second was wrong: the rest of the block goes.
            ids = [*block[:-2], verified[1].id]


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("at", [{1}, {2}, {3}, {4}, {1, 2}, {2, 3, 4}, {3, 5, 6}])
def test_a_link_that_is_cut_at_any_frame_loses_nothing(at: set[int], answers: bool) -> None:
    """The first frame opens the session; one after a cut resumes it."""
    with closing(Cutting(at, answers=answers)) as cut, closing(GatewayCloud(cut.url)) as cloud:
        cloud.check_vocabulary(BYTES)
        blocks(cloud)
        assert answers or len(cut.heard) > max(at)


def nearly(ids: Sequence[int]) -> Floats:
    """An edge that writes what the engine would, but for every fifth token."""
    logits = np.zeros(SIZE, np.float32)
    logits[own_id(ids) if len(ids) % 5 else 33] = 5.0
    return logits


def exactly(cloud: CloudModel, meanwhile: Callable[[int], None] = lambda index: None) -> None:
    """Writes an answer that is the engine's own; `meanwhile` is done after each token."""
    policy = Policy(verify="exact", deadline=DEADLINE, on_cloud_error="raise")
    edge = ScriptedEdge(nearly)
    decoder = Decoder(edge, router=Constant(0.0), policy=policy, cloud=cloud)
    events: list[Event] = []
    for event in decoder.stream(PROMPT, max_tokens=24):
        events.append(event)
        if isinstance(event, Token):
            meanwhile(event.index)
    ids = list(PROMPT)
    for _ in range(24):
        ids.append(own_id(ids))
    answer = collect(iter(events))
    assert [token.id for token in answer.tokens] == ids[len(PROMPT) :]
    assert answer.usage.verified_tokens + answer.usage.correction_tokens == 24
    assert answer.usage.correction_tokens == sum(at % 5 == 0 for at in range(len(PROMPT), len(ids)))


Fault = Callable[[Link], None]
FAULTS: dict[str, Fault] = {
    "cut": lambda link: link.cut(),
    "a reply in halves": lambda link: link.spoil(lambda data: data[: len(data) // 2], hang_up=True),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(4))
def test_a_real_gateway_behind_a_link_that_breaks(
    engine: VerifyingEngine, fault: str, at: int
) -> None:
    with gateway([engine]) as running:
        port = int(running.url.rpartition(":")[2])
        with closing(Link("127.0.0.1", port)) as link, closing(GatewayCloud(link.url)) as cloud:
            cloud.check_vocabulary(BYTES)
            blocks(cloud, lambda number: FAULTS[fault](link) if number == at else None)
            exactly(cloud, lambda index: None if index % 4 != at else FAULTS[fault](link))


def test_a_gateway_that_is_killed_and_started_again_loses_nothing(engine: VerifyingEngine) -> None:
    with ExitStack() as gateways:
        first = gateways.enter_context(gateway([engine]))
        port = int(first.url.rpartition(":")[2])

        def restart(number: int) -> None:
            if number:
                gateways.close()
                gateways.enter_context(gateway([VerifyingEngine()], port=port))

        with device(first) as cloud:
            blocks(cloud, restart)
            exactly(cloud, lambda index: restart(index == 9))


def another() -> PlainEngine:
    made = VerifyingEngine()
    made.mark = 1
    return made


@pytest.mark.parametrize(
    ("other", "error"), [(PlainEngine, CloudRejected), (another, OtherVocabulary)]
)
def test_a_gateway_in_its_place_that_cannot_is_asked_nothing(
    engine: VerifyingEngine, other: Callable[[], PlainEngine], error: type[CloudError]
) -> None:
    with ExitStack() as gateways:
        first, replaced = gateways.enter_context(gateway([engine])), other()
        port = int(first.url.rpartition(":")[2])
        with device(first) as cloud, closing(cloud.open(Prompt(tuple(PROMPT)))) as session:
            assert session.ask(verification()).result().verified
            gateways.close()
            gateways.enter_context(gateway([replaced], port=port))
            with pytest.raises(error):
                session.ask(verification([*IDS, 35])).result()
            assert replaced.asked == 0


def test_a_gateway_that_is_polite_but_old_in_its_place() -> None:
    """A reconnect leads to it: the verification fails, a consult goes on."""
    with closing(Liar()) as new, closing(GatewayCloud(new.url)) as cloud:
        cloud.check_vocabulary(BYTES)
        session = cloud.open(Prompt(tuple(PROMPT)))
        assert session.ask(verification(count=2)).result().verified
        new.hang_up()
        with closing(FakeGateway(politely)) as old:
            old.hang_up()
            old.listen(new.port)
            with pytest.raises(CloudRejected, match="cannot verify"):
                session.ask(verification(count=2)).result()
            assert session.ask(ConsultRequest(IDS, 1, DEADLINE)).result().ids == (97,)
