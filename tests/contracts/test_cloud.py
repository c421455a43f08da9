"""One contract for every cloud backend: in process, a real llama-server, and the doubles."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.engine import EngineCloud, LlamaServer
from edgewise.cloud.gateway import GatewayCloud
from edgewise.cloud.local import LocalCloud
from edgewise.completion import Completion, Verified
from edgewise.edge.base import EdgeOptions, Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudRejected, VocabularyMismatch
from edgewise.gateway.local import LocalEngine
from edgewise.prompts import Message, Prompt, prompt_ids
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, replying
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.doubles.engine_dialects import Dialect
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.running import device, gateway
from tests.llama_server_process import llama_server
from tests.vllm_process import vllm

DEADLINE = 20.0
GREEDY = Sampling()
NEAR_TIE = 0.05
"""Nats between two candidates that rounding may swap."""


@dataclass
class Backend:
    """A cloud model, the tokenizer it shares, and a prompt it has an answer to."""

    cloud: CloudModel
    tokenizer: Tokenizer
    prompt: list[int]
    metered: bool = True
    bounded: bool = True
    """Whether it has a context that a prompt can be too long for."""

    block: int = 1
    """Cache unit, ids."""

    proof: str = "all {} ids"
    """How its vocabulary is proven, with the number of ids."""


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with LlamaModel(bundled("edge"), threads=1) as model:
        yield model.tokenizer


APIS: tuple[Dialect, ...] = ("vllm", "sglang")
BACKENDS = ["local", "local_gateway", "scripted", *APIS]
# See `make test-vllm`.
REAL = ["llama_server", "gateway", *["real_vllm"] * ("VLLM_PYTHON" in os.environ)]


def scripted_api(name: Dialect) -> Iterator[Backend]:
    """An engine as its source says it is."""
    script = replying("blue sky.", prompt="sky: ")
    engine = ScriptedEngine(dialect=name, script=lambda ids: int(np.argmax(script(ids))))
    cloud = open_engine(engine.url)
    cloud.check_vocabulary(ByteTokenizer())
    yield Backend(cloud, ByteTokenizer(), list(b"sky: "), bounded=False)
    cloud.close()
    engine.close()


@pytest.fixture(
    scope="module",
    params=[*BACKENDS, *[pytest.param(name, marks=pytest.mark.deep) for name in REAL]],
)
def backend(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Iterator[Backend]:
    name: str = request.param
    prompt = prompt_ids(tokenizer, [Message("user", pocketqa().questions[0].prompt)])
    with ExitStack() as stack:

        def owned(cloud: CloudModel) -> CloudModel:
            stack.callback(cloud.close)
            cloud.check_vocabulary(tokenizer)
            return cloud

        if name == "scripted":
            script = replying("blue sky.", prompt="sky: ")
            made = ScriptedCloud(script, verifies=True)
            own = (ByteTokenizer(), list(b"sky: "))
            yield Backend(made, *own, metered=False, bounded=False, proof="all ids")
        elif name in APIS:
            yield from scripted_api(name)
        elif name == "local":
            cloud = LocalCloud(LlamaModel(bundled("cloud"), threads=1, slots=3))
            yield Backend(owned(cloud), tokenizer, prompt, proof="all ids")
        elif name == "local_gateway":
            running = stack.enter_context(gateway([LocalEngine("bundled", EdgeOptions(threads=1))]))
            cloud = stack.enter_context(device(running, tokenizer=tokenizer))
            yield Backend(cloud, tokenizer, prompt)
        elif name == "real_vllm":
            model = request.getfixturevalue("vllm_model")
            url = stack.enter_context(vllm(Path(os.environ["VLLM_PYTHON"]), model))
            cloud = open_engine(url)
            assert isinstance(cloud, EngineCloud)
            # Its first request compiles.
            cloud.submit(cloud.engine.complete(prompt, 1, GREEDY), 300).result()
            yield Backend(owned(cloud), tokenizer, prompt, block=32)
        else:
            url = stack.enter_context(llama_server(bundled("cloud")))
            if name == "gateway":
                url = stack.enter_context(gateway([url])).url
            cloud = GatewayCloud(url) if name == "gateway" else LlamaServer(url)
            yield Backend(owned(cloud), tokenizer, prompt)


@pytest.fixture
def session(backend: Backend) -> Iterator[CloudSession]:
    # Only then is it known whether it verifies.
    backend.cloud.check_vocabulary(backend.tokenizer)
    opened = opened_at(backend)
    yield opened
    opened.close()


def opened_at(backend: Backend) -> CloudSession:
    return backend.cloud.open(Prompt(tuple(backend.prompt)))


def ask(
    session: CloudSession, ids: list[int], n: int = 1, sampling: Sampling = GREEDY
) -> Completion:
    return session.ask(ConsultRequest(ids, n, DEADLINE, sampling)).result(DEADLINE)


def whole(backend: Backend, session: CloudSession) -> list[Completion]:
    """One consult a token until the cloud ends the answer."""
    completions: list[Completion] = []
    ids = list(backend.prompt)
    while not completions or not completions[-1].stopped:
        completions.append(ask(session, ids))
        ids += completions[-1].ids
        assert len(completions) < 200
    return completions


def test_the_vocabulary_is_proven_and_another_refused(backend: Backend) -> None:
    assert backend.proof.format(f"{backend.tokenizer.size:,}") in backend.cloud.check_vocabulary(
        backend.tokenizer
    )

    class Other(ByteTokenizer):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return [byte ^ 1 for byte in text.encode()]

    with pytest.raises(VocabularyMismatch):
        backend.cloud.check_vocabulary(Other("other"))


def test_an_answer_ends_with_an_end_token(backend: Backend, session: CloudSession) -> None:
    completions = whole(backend, session)
    assert completions[-1].ids[-1] in backend.tokenizer.eos_ids
    assert not any(completion.stopped for completion in completions[:-1])
    assert all(len(completion.ids) == 1 for completion in completions)
    for completion in [*completions, ask(session, backend.prompt, 2)]:
        assert len(completion.logprobs) == len(completion.ids)
        for token, top in zip(completion.ids, completion.top, strict=False):
            logprobs = [candidate.logprob for candidate in top]
            assert logprobs == sorted(logprobs, reverse=True), "candidates are sorted"
            assert top[0].id == token
    text = b"".join(backend.tokenizer.piece(v.ids[0]) for v in completions).decode()
    assert text.rstrip().endswith((".", ")."))


@pytest.mark.parametrize("span", [2, 4])
def test_a_span_is_its_single_tokens(backend: Backend, session: CloudSession, span: int) -> None:
    single = whole(backend, session)
    again = opened_at(backend)
    spanned: list[int] = []
    while True:
        completion = ask(again, [*backend.prompt, *spanned], span)
        spanned += completion.ids
        if completion.stopped:
            break
        assert len(completion.ids) == span
    again.close()
    for written, completion in zip(spanned, single, strict=False):
        if written != completion.ids[0]:
            # Engines compute a span in other batches, which may flip a near tie; all differs then.
            first, second = completion.top[0][:2]
            assert written == second.id
            assert first.logprob - second.logprob < NEAR_TIE
            return
    assert spanned[-1] in backend.tokenizer.eos_ids
    assert len(spanned) == len(single)


def test_whatever_it_did_it_speaks_as_a_fresh_one(backend: Backend, session: CloudSession) -> None:
    """After more, beside another one, behind what was pushed, and when others were closed."""

    def fresh(ids: list[int]) -> tuple[int, ...]:
        opened = opened_at(backend)
        completion = ask(opened, ids)
        opened.close()
        opened.close()
        return completion.ids

    sampling = Sampling(temperature=2.0, seed=7)
    draws = [ask(session, backend.prompt, 4, sampling).ids for _ in range(3)]
    assert draws[0] == draws[1] == draws[2], "a seed repeats a draw"
    first = ask(session, backend.prompt, 4)
    ask(session, [*backend.prompt, *first.ids])
    back = [*backend.prompt, first.ids[0]]
    assert ask(session, back).ids == fresh(back)
    other = backend.cloud.open(Prompt(tuple(backend.prompt[:-1])))
    ask(other, backend.prompt[:-1])
    alone = fresh(backend.prompt)
    assert ask(session, backend.prompt).ids == alone
    other.close()
    session.prefetch(back)
    assert ask(session, back).ids == fresh(back)


def test_only_new_ids_are_computed(backend: Backend, session: CloudSession) -> None:
    if not backend.metered:
        pytest.skip("the double has no meter")
    first = ask(session, backend.prompt)
    second = ask(session, [*backend.prompt, *first.ids])
    assert second.computed is not None
    assert second.computed <= 1 + backend.block
    assert second.cached is not None
    assert second.cached >= len(backend.prompt) - backend.block
    if backend.cloud.verifies:
        ids = [*backend.prompt, *backend.prompt[:4]]
        request = ConsultRequest(ids, 0, DEADLINE, GREEDY, verify=4)
        computed = session.ask(request).result(DEADLINE).computed
        assert computed is None or computed <= 5 + backend.block


def test_a_prompt_beyond_the_context_is_rejected(backend: Backend, session: CloudSession) -> None:
    if not backend.bounded:
        pytest.skip("the double has no context, and judges whatever it is given")
    with pytest.raises(CloudRejected):
        ask(session, backend.prompt * 30)
    assert ask(session, backend.prompt).ids
    if backend.cloud.verifies:
        for ids, count in ((backend.prompt, len(backend.prompt)), (backend.prompt * 30, 2)):
            with pytest.raises(CloudRejected):
                verify(session, ids, count)
        assert len(verify(session, backend.prompt, 3)) == 3


def verify(session: CloudSession, ids: list[int], count: int) -> tuple[Verified, ...]:
    """What it says of the last `count` of `ids`; it writes nothing."""
    request = ConsultRequest(ids, 0, DEADLINE, GREEDY, verify=count)
    completion = session.ask(request).result(DEADLINE)
    assert (completion.ids, completion.stopped) == ((), False)
    return completion.verified


class TestVerification:
    @pytest.fixture(autouse=True)
    def _verifies(self, backend: Backend, session: CloudSession) -> None:
        if not backend.cloud.verifies:
            pytest.skip("it does not verify")

    def test_what_it_wrote_is_its_own_choice(self, backend: Backend, session: CloudSession) -> None:
        """To the end token; another is less likely."""
        completions = whole(backend, session)
        ids = [*backend.prompt, *(one.ids[0] for one in completions)]
        for verified, one in zip(verify(session, ids, len(completions)), completions, strict=True):
            assert verified.ratio == pytest.approx(1, abs=NEAR_TIE)
            assert verified.id == one.ids[0] or one.top[0][1].id == verified.id
            if one.logprobs[0] is not None:
                assert verified.logprob == pytest.approx(one.logprobs[0], abs=NEAR_TIE)
        own = completions[0].ids[0]
        other = next(token for token in backend.prompt if token != own)
        (verified,) = verify(session, [*backend.prompt, other], 1)
        assert verified.id == own
        assert verified.logprob < verified.best
        assert verified.ratio < 1

    def test_a_block_is_verified_as_its_ids(self, backend: Backend, session: CloudSession) -> None:
        """And it writes on after a correction."""
        ids, count = [*backend.prompt, *backend.prompt[:7]], 7
        fresh = opened_at(backend)
        together = verify(fresh, ids, count)
        for number, one in enumerate(together):
            end = len(ids) - count + number + 1
            (alone,) = verify(session, ids[:end], 1)
            assert alone.logprob == pytest.approx(one.logprob, abs=NEAR_TIE)
            assert alone.best == pytest.approx(one.best, abs=NEAR_TIE)
        fresh.close()
        corrected = [*backend.prompt, together[0].id]
        fresh = opened_at(backend)
        assert ask(session, corrected).ids == ask(fresh, corrected).ids
        fresh.close()
