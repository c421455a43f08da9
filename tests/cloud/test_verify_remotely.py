"""Verification by a cloud: a gateway, a real llama-server, vLLM and SGLang by scripts.

SGLang cannot be run here: its replies have the form of its source (0.5.23). Those of vLLM have that
of a real one (0.32), which `make test-vllm` runs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from msgspec.structs import astuple, replace

from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.gateway import GatewayCloud
from edgewise.completion import LEAST, Completion, Outgoing, Verified
from edgewise.edge.base import Floats, Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.base import NOBODY, Client
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable, OtherVocabulary
from edgewise.events import Event, Token
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant
from edgewise.sampling import Sampling
from edgewise.testing.link import Link
from edgewise.testing.scripted_edge import SIZE, ByteTokenizer, ScriptedEdge
from edgewise.wire.protocol import (
    MAX_SPAN,
    VERSION,
    Ask,
    FromDevice,
    Prefetch,
    Reply,
    encode,
    packed,
)
from tests.cloud.test_gateway_cloud import OPENED, FakeGateway, Telling, cut
from tests.doubles.engine_dialects import DIALECTS, Dialect
from tests.doubles.scripted_engine import Edited, Misdeed, ScriptedEngine, said
from tests.gateway.doubles import PlainEngine, VerifyingEngine, own_id, read_along
from tests.gateway.running import device, gateway
from tests.llama_server_process import llama_server
from tests.smollm2_file import smollm2_or_skip

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


async def of_before(socket: web.WebSocketResponse, frame: FromDevice) -> None:
    """An old gateway opens and replies without the trailing elements."""
    if isinstance(frame, Ask):
        await socket.send_bytes(encode([17, frame.ask, [97], [-0.5], False, 1, 1, 0.1, []]))
    elif not isinstance(frame, Prefetch):
        await socket.send_bytes(encode([16, VERSION, "name", 0, 0, "vLLM", "qwen"]))


def directly(stack: ExitStack, engine: PlainEngine) -> CloudModel:
    cloud = stack.enter_context(closing(EngineCloud(engine)))
    cloud.check_vocabulary(BYTES)
    return cloud


def through_a_gateway(stack: ExitStack, engine: PlainEngine) -> CloudModel:
    return stack.enter_context(device(stack.enter_context(gateway([engine]))))


class Noting(VerifyingEngine):
    """Notes the sampling that it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Sampling] = []

    async def verify(self, ids: Any, count: int, sampling: Sampling, client: Any = None) -> Any:
        self.drawn.append(sampling)
        return await super().verify(ids, count, sampling, client)


@pytest.fixture
def engine() -> Noting:
    return Noting()


@pytest.fixture(params=[directly, through_a_gateway])
def cloud(request: pytest.FixtureRequest, engine: VerifyingEngine) -> Iterator[CloudModel]:
    with ExitStack() as stack:
        yield request.param(stack, engine)


def test_the_engine_says_what_it_thinks_of_each_id(engine: Noting, cloud: CloudModel) -> None:
    assert cloud.verifies
    drawn = Sampling(temperature=0.7, top_k=9, seed=5)
    for count in (COUNT, 1, len(IDS) - 1):
        completion = asked(cloud, verification(count=count, sampling=drawn))
        assert completion.verified == read_along(IDS, count).verified
        assert (completion.ids, completion.logprobs, completion.stopped) == ((), (), False)
    assert [packed(one) for one in engine.drawn] == [packed(drawn)] * 3
    ratios = [one.ratio for one in asked(cloud, verification()).verified]
    assert ratios[0] == 1
    assert max(ratios[1:]) < 0.02
    exactly(cloud)


def test_an_engine_that_fails_says_why(engine: Noting, cloud: CloudModel) -> None:
    def fails(ids: Sequence[int], n: int) -> Completion:
        raise error

    engine.reads = fails
    for error in (CloudUnavailable("away"), CloudRejected("no")):
        with pytest.raises(type(error)):
            asked(cloud, verification(deadline=1.0))
    engine.reads = read_along
    assert asked(cloud, verification()).verified


@pytest.mark.parametrize("way", [directly, through_a_gateway])
def test_one_that_cannot_verify_says_so(way: Callable[[ExitStack, PlainEngine], Any]) -> None:
    with ExitStack() as stack:
        cloud = way(stack, PlainEngine())
        assert not cloud.verifies
        with pytest.raises(CloudRejected, match="cannot verify"):
            asked(cloud, verification())


def test_nothing_is_asked_of_a_gateway_of_before() -> None:
    with closing(FakeGateway(of_before)) as old, closing(GatewayCloud(old.url)) as cloud:
        cloud.check_vocabulary(BYTES)
        assert not cloud.verifies
        session, sent = cloud.open(Prompt(tuple(PROMPT))), Outgoing()
        with pytest.raises(CloudRejected, match="cannot verify"):
            session.ask(verification(sent=sent)).result()
        assert old.asks == []
        assert (sent.ids, sent.requests) == (0, 0)
        completion = session.ask(ConsultRequest(IDS, 1, DEADLINE)).result()
        assert (completion.ids, completion.verified) == ((97,), ())
        # The ids that were to be verified had not been sent, and are now.
        assert old.asks[-1].ids == IDS


def test_more_than_a_gateway_takes_is_not_sent(engine: VerifyingEngine) -> None:
    with gateway([engine]) as running, device(running) as cloud:
        with pytest.raises(CloudRejected, match=str(MAX_SPAN)):
            asked(cloud, verification([1] * (MAX_SPAN + 9), MAX_SPAN + 1))
        assert len(asked(cloud, verification([1] * (MAX_SPAN + 9), MAX_SPAN)).verified) == MAX_SPAN


GOOD = [-4.5, 98, -0.25]
NO_LOGPROBS = [float("nan"), float("inf"), float("-inf"), 0.5, 1e308, "1", None, True, []]
NO_IDS = [-1, SIZE, 1 << 31, 1 << 32, 1 << 63, 1.5, "97", None, True]
LIES: list[dict[str, Any]] = [
    *({"verified": rows} for rows in ([], [GOOD], [GOOD] * 3, [GOOD] * 50_000, None, "no", 1)),
    *({"verified": [GOOD, row]} for row in ([], [-4.5], [-4.5, 98], [*GOOD, 1], None, {}, 7)),
    *({"verified": [GOOD, [value, 98, -0.25]]} for value in NO_LOGPROBS),
    *({"verified": [GOOD, [-4.5, 98, value]]} for value in NO_LOGPROBS),
    *({"verified": [GOOD, [-4.5, value, -0.25]]} for value in NO_IDS),
    {"verified": [GOOD, [-0.25, 98, -4.5]]},
    *({"ids": [97], "logprobs": [-0.5], "stopped": stopped} for stopped in (False, True)),
    *({"logprobs": [-0.5]}, {"top": [[[97, -0.5]]]}, {"cached": 2 * len(IDS) + 1}),
]
NONE = {"ids": [], "logprobs": [], "stopped": False, "cached": 1, "computed": 2, "seconds": 0.1}
READ: dict[str, Any] = {**NONE, "top": [], "verified": [GOOD, GOOD]}
"""A reply that verifies two ids."""


def test_every_lie_of_a_gateway_is_a_failed_consult() -> None:
    believed: list[dict[str, Any]] = []
    with telling() as (liar, cloud):
        cloud.check_vocabulary(BYTES)
        for lie in LIES:
            liar.fields = READ | lie
            try:
                asked(cloud, verification(count=2))
            except CloudProtocolError:
                continue
            believed.append(lie)
        assert believed == []
        liar.fields = READ
        assert asked(cloud, verification(count=2)).verified == (Verified(*GOOD),) * 2
        # Nobody asked to have something verified.
        liar.fields = READ | {"ids": [97], "logprobs": [-0.5]}
        with pytest.raises(CloudProtocolError):
            asked(cloud, ConsultRequest(IDS, 1, DEADLINE))


@contextmanager
def telling() -> Iterator[tuple[Telling, GatewayCloud]]:
    """A gateway that verifies as it is told."""
    with closing(Telling(READ, verifies=True)) as fake, closing(GatewayCloud(fake.url)) as cloud:
        yield fake, cloud


class Gap(ByteTokenizer):
    """Has an id that stands for nothing."""

    def piece(self, token: int) -> bytes:
        return b"" if token == 98 else super().piece(token)


def test_a_choice_that_the_edge_vocabulary_does_not_define_is_refused() -> None:
    with telling() as (_, cloud):
        cloud.check_vocabulary(Gap())
        with pytest.raises(CloudProtocolError, match="98"):
            asked(cloud, verification(count=2))


class Cutting(FakeGateway):
    """Says what a `VerifyingEngine` does, but hangs up at some frames, having answered or not."""

    def __init__(self, at: set[int], *, answers: bool) -> None:
        super().__init__(self._say)
        self.at, self.answers, self.held = at, answers, list[int]()

    async def _say(self, socket: web.WebSocketResponse, frame: FromDevice) -> None:
        breaks = len(self.heard) - 1 in self.at
        if isinstance(frame, Prefetch) or (breaks and not self.answers):
            pass
        elif isinstance(frame, Ask):
            self.held[frame.position :] = frame.ids
            rows = tuple(astuple(one) for one in read_along(self.held, frame.verify).verified)
            await socket.send_bytes(encode(Reply(frame.ask, (), (), verified=rows)))
        else:
            self.held = []
            await socket.send_bytes(encode(replace(OPENED, verifies=True)))
        if breaks:
            cut(socket)


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
    with closing(Cutting(at, answers=answers)) as made, closing(GatewayCloud(made.url)) as cloud:
        cloud.check_vocabulary(BYTES)
        blocks(cloud)
        assert answers or len(made.heard) > max(at)


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


def in_halves(link: Link) -> None:
    """A reply comes so."""
    link.spoil(lambda data: data[: len(data) // 2], hang_up=True)


@pytest.mark.parametrize("fault", [Link.cut, in_halves])
@pytest.mark.parametrize("at", range(4))
def test_a_real_gateway_behind_a_bad_link(engine: Noting, fault: Any, at: int) -> None:
    with gateway([engine]) as running:
        port = int(running.url.rpartition(":")[2])
        with closing(Link("127.0.0.1", port)) as link, closing(GatewayCloud(link.url)) as cloud:
            cloud.check_vocabulary(BYTES)
            blocks(cloud, lambda number: fault(link) if number == at else None)
            exactly(cloud, lambda index: None if index % 4 != at else fault(link))


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


@pytest.mark.parametrize(("mark", "error"), [(0, CloudRejected), (1, OtherVocabulary)])
def test_one_in_its_place_that_cannot_is_asked_nothing(
    engine: Noting, mark: int, error: Any
) -> None:
    """One that has the same ids is consulted all the same."""
    with ExitStack() as gateways:
        first, replaced = gateways.enter_context(gateway([engine])), PlainEngine()
        replaced.mark = mark
        port = int(first.url.rpartition(":")[2])
        with device(first) as cloud, closing(cloud.open(Prompt(tuple(PROMPT)))) as session:
            assert session.ask(verification()).result().verified
            gateways.close()
            gateways.enter_context(gateway([replaced], port=port))
            with pytest.raises(error):
                session.ask(verification([*IDS, 35])).result()
            assert replaced.asked == 0
            if not mark:
                assert session.ask(ConsultRequest(IDS, 1, DEADLINE)).result().ids == (97,)


PREFIX = [1, 2, 3]
GREEDY = Sampling()


@contextmanager
def verifying(
    script: Callable[[Sequence[int]], int] = lambda ids: 97, dialect: Dialect = "llama-server"
) -> Iterator[tuple[ScriptedEngine, EngineCloud]]:
    """It would always write 97, then 98, ..., which has e^-5, e^-6, ... of the probability."""
    with closing(ScriptedEngine(dialect=dialect, script=script)) as server:
        cloud = open_engine(server.url, engine=dialect)
        assert isinstance(cloud, EngineCloud)
        with closing(cloud):
            yield server, cloud


@pytest.fixture(params=DIALECTS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[ScriptedEngine, EngineCloud]]:
    with verifying(dialect=request.param) as made:
        yield made


def verify(
    cloud: EngineCloud,
    ids: Sequence[int],
    count: int,
    *,
    sampling: Sampling = GREEDY,
    client: Client = NOBODY,
) -> Completion:
    found = cloud.submit(cloud.engine.verify(ids, count, sampling, client), 60).result()
    assert (found.ids, found.logprobs) == ((), ())
    found.validate(asked=0, prompt=len(ids), verify=count)
    return found


def test_a_block_is_verified_in_one_request(pair: tuple[ScriptedEngine, EngineCloud]) -> None:
    server, cloud = pair
    cloud.check_vocabulary(ByteTokenizer())
    assert cloud.engine.verifies
    drawn = Sampling(temperature=1.5, seed=3)  # which changes nothing
    assert verify(cloud, [*PREFIX, 98], 1, sampling=drawn).verified == (Verified(-4.1, 97, -0.1),)
    before = server.asked
    found = verify(cloud, [*PREFIX, 97, 5, 98, 97], 4, client=Client("s", "pepper"))
    assert server.asked == before + 1
    listed = LEAST if server.speaks != "vllm" else -0.1 - 3 - 19
    told = [(-0.1, 97), (listed, 97), (-4.1, 97), (-0.1, 97)]
    assert [(one.logprob, one.id) for one in found.verified] == told
    assert {one.best for one in found.verified} == {-0.1}
    body = server.requests[-1].body
    if server.speaks == "llama-server":
        assert body["prompt"] == PREFIX
        assert (found.prompt, found.cached, found.computed) == (3, 2, 1)
        return
    assert body["cache_salt"] == "pepper"
    assert body["temperature"] == 0
    if server.speaks == "vllm":
        ids = [*PREFIX, 97, 5, 98]
        assert body["prompt"] == [ids[:end] for end in (3, 4, 5, 6)]
        assert (found.prompt, found.cached, found.computed) == (3 + 4 + 5 + 6, None, None)
    else:
        assert (body["input_ids"], body["logprob_start_len"]) == ([*PREFIX, 97, 5, 98, 97], 2)
        assert (found.prompt, found.cached, found.computed) == (7, 2, 5)


def edited(how: str) -> Edited:
    """A reply with one thing wrong, whatever its dialect."""

    def change(data: bytes) -> bytes:
        reply = msgspec.json.decode(data)
        meta = reply.get("meta_info", {})
        rows = reply.get("completion_probabilities") or reply.get("choices") or []
        if how == "short":
            (rows or meta["input_token_logprobs"]).pop()
        elif how == "no rows":
            reply |= {"completion_probabilities": [], "choices": []}
            meta |= {"input_token_logprobs": [], "input_top_logprobs": []}
        elif how.endswith("candidates"):
            few = how == "few candidates"
            meta["input_top_logprobs"] = [[] if few else None] * 4
            for row in rows:
                row.get("logprobs", {})["top_logprobs"] = [{"token_id:97": -0.1} if few else None]
                row["top_logprobs"] = []
        elif how == "no logprob":
            meta["input_token_logprobs"] = [[None, one, None] for one in (3, 97, 5, 98)]
            for row in rows:
                row["logprob"] = None
                row["logprobs"] = None if "index" in row else {}
        elif how == "other ids":
            meta["input_token_logprobs"] = [[-1.0, 7, None]] * 4
            for row in rows:
                row["id"], row["index"] = 7, 0
        return msgspec.json.encode(reply)

    return Edited(change)


WRONG = ["short", "no rows", "no candidates", "few candidates", "no logprob", "other ids"]


def test_what_is_not_told_of_every_id_is_refused(pair: tuple[ScriptedEngine, EngineCloud]) -> None:
    """And a busy engine is not asked for each."""
    server, cloud = pair
    for how in WRONG:
        server.fault = lambda number, how=how: edited(how)
        with pytest.raises(CloudProtocolError):
            verify(cloud, [*PREFIX, 97, 5, 98], 3)
    faults: list[Misdeed] = ["busy", "reset"]
    for fault in faults:
        before, server.fault = server.asked, lambda number, fault=fault: fault
        with pytest.raises(CloudUnavailable):
            verify(cloud, [*PREFIX, 97, 5, 98], 3)
        assert server.asked - before <= 2


@pytest.mark.parametrize("fault", [edited("no candidates"), "declined", "error"])
def test_a_llama_server_that_writes_no_block_is_asked_for_each_id(fault: Misdeed) -> None:
    """It drafted most of it; it is an old one; an end token is inside."""
    with verifying() as (server, cloud):
        server.fault = lambda number: None if number else fault
        found = verify(cloud, [*PREFIX, 97, 5, 98], 3)
        assert [one.logprob for one in found.verified] == [-0.1, LEAST, -4.1]
        assert {one.id for one in found.verified} == {97}
        assert (found.prompt, found.cached, found.computed) == (12, 9, 3)
        assert server.asked == 4


TEXT = list("a\N{GRINNING FACE}b\N{CJK UNIFIED IDEOGRAPH-6F22}".encode())


def test_tokens_inside_a_character_are_verified() -> None:
    """A llama-server reports nothing of a token that it wrote there.

    Where it would write another, that has at most the probability of the last that is listed.
    """
    with verifying(lambda ids: TEXT[len(ids) - len(PREFIX)]) as (_, cloud):
        for count in (1, 2, 3, 5, len(TEXT)):
            for end in range(count, len(TEXT) + 1):
                found = verify(cloud, [*PREFIX, *TEXT[:end]], count).verified
                assert [one.id for one in found] == TEXT[end - count : end]
                assert {(one.logprob, one.best) for one in found} == {(-0.1, -0.1)}
    with verifying() as (_, cloud):
        found = verify(cloud, [*PREFIX, 97, TEXT[1], 98], 3).verified
    assert [one.id for one in found] == [97, 97, 97]
    assert [one.logprob for one in found] == [-0.1, -0.1 - 3 - 99, -4.1]


def test_the_last_id_of_a_vocabulary_has_another_name_at_sglang() -> None:
    last = ByteTokenizer().size - 1

    def renamed(data: bytes) -> bytes:
        reply = msgspec.json.decode(data)
        for row in reply["meta_info"]["input_token_logprobs"]:
            row[1] = 0 if row[1] == last else row[1]
        return msgspec.json.encode(reply)

    with verifying(lambda ids: last, "sglang") as (server, cloud):
        server.fault = lambda number: Edited(renamed)
        found = verify(cloud, [*PREFIX, 5, last], 2).verified
    assert [one.id for one in found] == [last, last]
    assert found[1].ratio == 1


def test_no_probability_is_a_logprob_that_travels() -> None:
    """llama-server sends the least number there is."""
    row = {"id": 5, "logprob": -3.4e38, "top_logprobs": [{"id": 97, "logprob": 0.0}]}
    reply = {"tokens": [5], "completion_probabilities": [row]}
    with verifying() as (server, cloud):
        server.replies[DIALECTS["llama-server"].path] = said(reply)
        assert verify(cloud, [*PREFIX, 5], 1).verified == (Verified(LEAST, 97, 0.0),)


class Real:
    """A llama-server, and its model in this process."""

    def __init__(self, cloud: EngineCloud, model: LlamaModel) -> None:
        self.cloud, self.model, self.ends = cloud, model, sorted(model.tokenizer.eos_ids)
        self.prompt = model.tokenizer.encode_prompt("Tell me about copper.")
        self.block = model.tokenizer.encode("Copper is a blue metal 12 % #")

    def told(self, block: Sequence[int]) -> list[tuple[float, int, float]]:
        """What the model in this process says of each behind the prompt."""
        session, told = self.model.session(Needs.LOGITS), []
        session.open(self.prompt)
        for token in block:
            step = session.step()
            best = int(step.top(1)[0][0])
            told.append((float(step.logprob(token)), best, float(step.logprob(best))))
            session.extend([token])
        session.close()
        return told

    def verify(self, block: Sequence[int], client: Client = NOBODY) -> Completion:
        return verify(self.cloud, [*self.prompt, *block], len(block), client=client)

    def agrees(self, *block: int) -> Completion:
        found, expected = self.verify(block), self.told(block)
        assert [one.id for one in found.verified] == [best for _, best, _ in expected]
        for one, (logprob, _, best) in zip(found.verified, expected, strict=True):
            np.testing.assert_allclose((one.logprob, one.best), (logprob, best), atol=1e-2)
        return found


@pytest.fixture(scope="module", params=["bundled", "smollm2"])
def real(request: pytest.FixtureRequest) -> Iterator[Real]:
    path: Path = bundled("cloud") if request.param == "bundled" else smollm2_or_skip()
    with LlamaModel(path, threads=1, gpu_layers=0) as model, llama_server(path) as url:
        cloud = open_engine(url)
        assert isinstance(cloud, EngineCloud)
        with closing(cloud):
            yield Real(cloud, model)


@pytest.mark.deep
def test_it_agrees_with_the_model_here(real: Real) -> None:
    """Also where it rejects what is in the middle; and nothing is computed twice."""
    block = real.block
    found = real.agrees(*block)
    assert any(one.id != token for one, token in zip(found.verified, block, strict=True))
    again = real.verify(block)
    assert again.verified == found.verified
    assert again.computed == 1
    for tenant in ("one", "other"):
        assert real.verify(block, Client(tenant=tenant)).verified == found.verified
    # An end token at the end is told exactly, and one inside is verified too.
    for end in real.ends:
        real.agrees(*block, end)
        real.agrees(end)
    real.agrees(block[0], real.ends[0], *block[1:3], real.ends[-1])
    for control in [*real.model.tokenizer.special][:4]:
        real.agrees(block[0], control, block[1])
    # An id that it does not have is refused, and the server goes on.
    for wrong in (real.model.tokenizer.size, 1 << 30, 1 << 40):
        for ids in ([*block[:2], wrong], [block[0], wrong, block[1]], [wrong]):
            with pytest.raises((CloudRejected, CloudProtocolError)):
                real.verify(ids)
    real.agrees(*block)


@pytest.mark.deep
def test_tokens_inside_a_character_are_verified_there(real: Real) -> None:
    """Less than the listed have is not told exactly."""
    ids = real.model.tokenizer.encode("It is \N{GRINNING FACE} or \N{HEAVY BLACK HEART}, and 12")
    for count in (len(ids), *range(1, 6)):
        found = verify(real.cloud, [*real.prompt, *ids], count).verified
        for one, (logprob, best_id, best) in zip(found, real.told(ids)[-count:], strict=True):
            assert one.id == best_id
            assert one.best == pytest.approx(best, abs=1e-2)
            assert logprob - 1e-2 <= one.logprob <= max(logprob, -np.log(100)) + 1e-2
        ids.pop()
