"""One contract for every cloud backend: in process, a real llama-server, and the doubles."""

import os
from collections.abc import Iterator
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
    prompt = prompt_ids(tokenizer, [Message("user", pocketqa().questions[0].prompt)])
    if request.param == "scripted":
        script = replying("blue sky.", prompt="sky: ")
        own = ByteTokenizer()
        made = ScriptedCloud(script, verifies=True)
        bare = Backend(made, own, list(b"sky: "), metered=False, bounded=False, proof="all ids")
        yield bare
    elif request.param in APIS:
        yield from scripted_api(request.param)
    elif request.param == "local":
        cloud = LocalCloud(LlamaModel(bundled("cloud"), threads=1, slots=3))
        yield Backend(cloud, tokenizer, prompt, proof="all ids")
        cloud.close()
    elif request.param == "local_gateway":
        engine = LocalEngine("bundled", EdgeOptions(threads=1))
        with gateway([engine]) as running, device(running, tokenizer=tokenizer) as cloud:
            yield Backend(cloud, tokenizer, prompt)
    elif request.param == "gateway":
        with llama_server(bundled("cloud")) as url, gateway([url]) as running:
            cloud = GatewayCloud(running.url)
            cloud.check_vocabulary(tokenizer)
            yield Backend(cloud, tokenizer, prompt)
            cloud.close()
    elif request.param == "real_vllm":
        model = request.getfixturevalue("vllm_model")
        python = Path(os.environ["VLLM_PYTHON"])
        with vllm(python, model) as url:
            cloud = open_engine(url)
            assert isinstance(cloud, EngineCloud)
            # Its first request compiles.
            cloud.submit(cloud.engine.complete(prompt, 1, GREEDY), 300).result()
            cloud.check_vocabulary(tokenizer)
            yield Backend(cloud, tokenizer, prompt, block=32)
            cloud.close()
    else:
        with llama_server(bundled("cloud")) as url:
            server = LlamaServer(url)
            server.check_vocabulary(tokenizer)
            yield Backend(server, tokenizer, prompt)
            server.close()


@pytest.fixture
def session(backend: Backend) -> Iterator[CloudSession]:
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
    text = b"".join(backend.tokenizer.piece(v.ids[0]) for v in completions).decode()
    assert text.rstrip().endswith((".", ")."))


@pytest.mark.parametrize("span", [2, 4])
def test_a_span_equals_as_many_single_tokens(
    backend: Backend, session: CloudSession, span: int
) -> None:
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


def test_going_back_equals_a_fresh_session(backend: Backend, session: CloudSession) -> None:
    first = ask(session, backend.prompt, 4)
    ask(session, [*backend.prompt, *first.ids])
    rolled_back = ask(session, [*backend.prompt, first.ids[0]])
    fresh = opened_at(backend)
    expected = ask(fresh, [*backend.prompt, first.ids[0]])
    fresh.close()
    assert rolled_back.ids == expected.ids


def test_sessions_do_not_mix(backend: Backend, session: CloudSession) -> None:
    other = backend.cloud.open(Prompt(tuple(backend.prompt[:-1])))
    alone = ask(session, backend.prompt)
    ask(other, backend.prompt[:-1])
    assert ask(session, backend.prompt).ids == alone.ids
    other.close()


def test_candidates_are_sorted_and_hold_the_answer(backend: Backend, session: CloudSession) -> None:
    completion = ask(session, backend.prompt, 2)
    assert len(completion.logprobs) == len(completion.ids)
    for token, top in zip(completion.ids, completion.top, strict=False):
        logprobs = [candidate.logprob for candidate in top]
        assert logprobs == sorted(logprobs, reverse=True)
        assert top[0].id == token


def test_the_meter_shows_that_only_new_ids_are_computed(
    backend: Backend, session: CloudSession
) -> None:
    if not backend.metered:
        pytest.skip("the double has no meter")
    first = ask(session, backend.prompt)
    second = ask(session, [*backend.prompt, *first.ids])
    assert second.computed is not None
    assert second.computed <= 1 + backend.block
    assert second.cached is not None
    assert second.cached >= len(backend.prompt) - backend.block


def test_what_was_pushed_changes_no_completion(backend: Backend, session: CloudSession) -> None:
    session.prefetch(backend.prompt)
    completion = ask(session, backend.prompt)
    fresh = opened_at(backend)
    assert completion.ids == ask(fresh, backend.prompt).ids
    fresh.close()


def test_a_seed_repeats_a_draw(backend: Backend, session: CloudSession) -> None:
    sampling = Sampling(temperature=2.0, seed=7)
    draws = [ask(session, backend.prompt, 4, sampling).ids for _ in range(3)]
    assert draws[0] == draws[1] == draws[2]


def test_a_prompt_beyond_the_context_is_rejected(backend: Backend, session: CloudSession) -> None:
    if not backend.bounded:
        pytest.skip("the double has no context")
    with pytest.raises(CloudRejected):
        ask(session, backend.prompt * 30)
    assert ask(session, backend.prompt).ids


def verify(session: CloudSession, ids: list[int], count: int) -> tuple[Verified, ...]:
    """What it says of the last `count` of `ids`; it writes nothing."""
    request = ConsultRequest(ids, 0, DEADLINE, GREEDY, verify=count)
    completion = session.ask(request).result(DEADLINE)
    assert (completion.ids, completion.stopped) == ((), False)
    return completion.verified


class TestVerification:
    @pytest.fixture(autouse=True)
    def _verifies(self, backend: Backend) -> None:
        backend.cloud.check_vocabulary(backend.tokenizer)
        if not backend.cloud.verifies:
            pytest.skip("it does not verify")

    def test_what_it_wrote_is_its_own_choice(self, backend: Backend, session: CloudSession) -> None:
        """To the end token."""
        completions = whole(backend, session)
        ids = [*backend.prompt, *(one.ids[0] for one in completions)]
        for verified, one in zip(verify(session, ids, len(completions)), completions, strict=True):
            assert verified.ratio == pytest.approx(1, abs=NEAR_TIE)
            assert verified.id == one.ids[0] or one.top[0][1].id == verified.id
            if one.logprobs[0] is not None:
                assert verified.logprob == pytest.approx(one.logprobs[0], abs=NEAR_TIE)

    def test_what_it_would_not_have_written_is_less_likely(
        self, backend: Backend, session: CloudSession
    ) -> None:
        own = ask(session, backend.prompt)
        other = next(token for token in backend.prompt if token != own.ids[0])
        (verified,) = verify(session, [*backend.prompt, other], 1)
        assert verified.id == own.ids[0]
        assert verified.logprob < verified.best
        assert verified.ratio < 1

    def test_a_block_is_verified_as_its_ids_are(
        self, backend: Backend, session: CloudSession
    ) -> None:
        ids, count = [*backend.prompt, *backend.prompt[:7]], 7
        fresh = opened_at(backend)
        together = verify(fresh, ids, count)
        fresh.close()
        for number, one in enumerate(together):
            end = len(ids) - count + number + 1
            (alone,) = verify(session, ids[:end], 1)
            assert alone.logprob == pytest.approx(one.logprob, abs=NEAR_TIE)
            assert alone.best == pytest.approx(one.best, abs=NEAR_TIE)

    def test_it_writes_on_after_a_correction(self, backend: Backend, session: CloudSession) -> None:
        drafted = [*backend.prompt, *backend.prompt[:5]]
        corrected = [*backend.prompt, verify(session, drafted, 5)[0].id]
        fresh = opened_at(backend)
        assert ask(session, corrected).ids == ask(fresh, corrected).ids
        fresh.close()

    def test_only_new_ids_are_computed(self, backend: Backend, session: CloudSession) -> None:
        if not backend.metered:
            pytest.skip("the double has no meter")
        ask(session, backend.prompt)
        ids = [*backend.prompt, *backend.prompt[:4]]
        request = ConsultRequest(ids, 0, DEADLINE, GREEDY, verify=4)
        computed = session.ask(request).result(DEADLINE).computed
        assert computed is None or computed <= 5 + backend.block

    def test_what_cannot_be_verified_is_refused(
        self, backend: Backend, session: CloudSession
    ) -> None:
        if not backend.bounded:
            pytest.skip("the double judges whatever it is given")
        with pytest.raises(CloudRejected):
            verify(session, backend.prompt, len(backend.prompt))
        with pytest.raises(CloudRejected):
            verify(session, backend.prompt * 30, 2)
        assert len(verify(session, backend.prompt, 3)) == 3


def test_closing_twice_is_fine(backend: Backend) -> None:
    opened = opened_at(backend)
    opened.close()
    opened.close()
    again = opened_at(backend)
    assert ask(again, backend.prompt).ids
    again.close()
