"""What every edge backend promises, run against each of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edgewise.edge.base import EdgeAbilities, EdgeModel, EdgeSession, Floats, Needs, Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.onnx import OnnxModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import ContextOverflow, StaleStepError, UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.uncertainty import MaxProb
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from tests.hybrid_models import HYBRIDS, HybridPaths

CONTEXT = 64
PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100, 33]
MORE = [40, 41, 42, 43, 44]
ATOL = 0.02
"""Batched and one-by-one decodes differ in rounding; other inputs differ by more than 1."""
MARK, WALK, NEAR = 8, 100, 1e-2
"""Steps of a random walk, and how far it may lead from the logits, of the largest."""


@dataclass
class Backend:
    """How to make a model, and the ids that its sessions have run through it so far."""

    make: Callable[..., EdgeModel]
    open_models: list[EdgeModel] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)

    def model(self, *, slots: int = 1, **options: Any) -> EdgeModel:
        model = self.make(context=CONTEXT, slots=slots, **options)
        self.open_models.append(model)
        self.runs.clear()  # some are tried when they are loaded
        return model

    def session(self, needs: Needs = Needs.LOGITS) -> EdgeSession:
        return self.model().session(needs)

    def computed(self, session: EdgeSession) -> int:
        counted = getattr(session, "computed_ids", None)
        return sum(self.runs) if counted is None else counted


@pytest.fixture(
    params=["bpe", "spm", "onnx", "scripted", "gemma3", *HYBRIDS],
)
def backend(
    request: pytest.FixtureRequest,
    bpe_path: Path,
    spm_path: Path,
    hybrid_paths: HybridPaths,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Backend]:
    if request.param == "onnx":
        made = onnx_backend(request.getfixturevalue("onnx_path"), monkeypatch)
    elif request.param == "scripted":
        made = Backend(
            lambda context, slots: ScriptedEdge(
                noise(), context=context, abilities=EdgeAbilities(slots=slots)
            )
        )
    else:
        plain = {"bpe": bpe_path, "spm": spm_path}.get(request.param)
        path = plain or hybrid_paths[request.param]
        options: dict[str, Any] = {"threads": 1, "gpu_layers": 0}
        made = Backend(lambda **more: LlamaModel(path, **options, **more))
        decode = llama_cpp.llama_decode

        def counted(context: Any, batch: Any) -> int:
            made.runs.append(batch.n_tokens)
            return decode(context, batch)

        monkeypatch.setattr(llama_cpp, "llama_decode", counted)
    yield made
    for model in made.open_models:
        model.close()


def onnx_backend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    genai = pytest.importorskip("onnxruntime_genai")
    append = genai.Generator.append_tokens

    def counted(generator: Any, ids: Any) -> None:
        made.runs.append(len(ids))
        append(generator, ids)

    made = Backend(lambda **more: OnnxModel(folder, threads=1, gpu_layers=0, **more))
    monkeypatch.setattr(genai.Generator, "append_tokens", counted)
    return made


def fresh_logits(backend: Backend, ids: Sequence[int]) -> Floats:
    """Logits after `ids`, from a model that has seen nothing else."""
    with closing(backend.session()) as session:
        session.open(ids)
        return session.step().logits.copy()


def assert_close(left: Floats, right: Floats) -> None:
    np.testing.assert_allclose(left, right, atol=ATOL, rtol=0)


def assert_near(left: Floats, right: Floats) -> None:
    """After a long walk, batches of many sizes."""
    np.testing.assert_allclose(left, right, atol=NEAR * float(np.abs(right).max()), rtol=0)


class TestEdge:
    def test_step_stands_behind_every_id(self, backend: Backend) -> None:
        session = backend.session()
        assert session.open(PROMPT) == 0
        assert session.position == len(PROMPT)
        step = session.step()
        assert step.position == len(PROMPT)
        assert step.proposed == int(np.argmax(step.logits))
        assert step.size == len(step.logits) == backend.open_models[0].tokenizer.size

    def test_extend_one_by_one_equals_opening_the_whole(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT)
        for token in MORE:
            session.step()
            session.extend([token])
        assert session.position == len(PROMPT) + len(MORE)
        assert_close(session.step().logits, fresh_logits(backend, PROMPT + MORE))

    def test_the_future_depends_on_every_id(self, backend: Backend) -> None:
        changed = [PROMPT[0] + 1, *PROMPT[1:]]
        difference = fresh_logits(backend, PROMPT) - fresh_logits(backend, changed)
        assert np.abs(difference).max() > 10 * ATOL

    def test_nothing_is_computed_twice(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT)
        session.step()
        assert backend.computed(session) == len(PROMPT)
        session.extend(MORE[:2])
        session.step()
        session.step()
        session.steps(MORE[2:])
        assert backend.computed(session) == len(PROMPT + MORE)

    def test_open_keeps_the_common_prefix(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT + MORE)
        session.step()
        before = backend.computed(session)
        turned = [*PROMPT, MORE[0] + 1, *MORE[1:]]
        kept = session.open(turned)
        if backend.open_models[0].abilities.rewinds == "anywhere":
            assert kept == len(PROMPT)
        assert kept <= len(PROMPT)
        logits = session.step().logits
        assert backend.computed(session) - before == len(turned) - kept
        assert_close(logits, fresh_logits(backend, turned))

    def test_open_of_what_is_there_computes_nothing(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT)
        expected = session.step().logits.copy()
        before = backend.computed(session)
        assert session.open(PROMPT) == len(PROMPT)
        assert_close(session.step().logits, expected)
        assert backend.computed(session) == before

    def test_ids_that_were_only_queued_are_no_hit(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT)
        assert session.open(PROMPT) == 0
        assert_close(session.step().logits, fresh_logits(backend, PROMPT))

    @pytest.mark.parametrize("back", [1, 2, len(MORE)])
    def test_step_after_rewind_equals_the_step_before(self, backend: Backend, back: int) -> None:
        session = backend.session()
        session.open(PROMPT + MORE)
        kept = (PROMPT + MORE)[: len(PROMPT + MORE) - back]
        session.step()
        session.rewind(len(kept))
        assert session.position == len(kept)
        assert_close(session.step().logits, fresh_logits(backend, kept))
        session.extend(MORE[-back:])
        assert_close(session.step().logits, fresh_logits(backend, PROMPT + MORE))

    def test_rewind_drops_queued_ids_too(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT)
        expected = session.step().logits.copy()
        session.extend(MORE)
        session.rewind(len(PROMPT))
        assert_close(session.step().logits, expected)

    def test_another_branch_of_the_same_length(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT + MORE)
        session.step()
        session.rewind(len(PROMPT))
        branch = [token + 5 for token in MORE]
        session.extend(branch)
        assert_close(session.step().logits, fresh_logits(backend, PROMPT + branch))

    @pytest.mark.parametrize("position", [-1, len(PROMPT) + 1])
    def test_rewind_only_goes_back(self, backend: Backend, position: int) -> None:
        session = backend.session()
        session.open(PROMPT)
        with pytest.raises(ValueError, match="rewind"):
            session.rewind(position)
        assert session.position == len(PROMPT)

    def test_a_batch_agrees_with_one_by_one(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT)
        batch = session.steps(MORE)
        assert [step.position for step in batch] == [len(PROMPT) + i + 1 for i in range(len(MORE))]
        rows = [step.logits.copy() for step in batch]
        for index, row in enumerate(rows):
            assert_close(row, fresh_logits(backend, PROMPT + MORE[: index + 1]))

    def test_rewind_into_a_batch(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT)
        second = session.steps(MORE)[1].logits.copy()
        session.rewind(len(PROMPT) + 2)
        assert_close(session.step().logits, second)

    def test_an_empty_batch_is_no_step(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT)
        assert list(session.steps([])) == []
        assert session.position == len(PROMPT)

    def test_views_are_stale_after_the_next_decode(self, backend: Backend) -> None:
        session = backend.session(Needs.NOTHING)
        session.open(PROMPT)
        step = session.step()
        assert step.logits.shape == (backend.open_models[0].tokenizer.size,)
        session.extend(MORE[:1])
        session.step()
        for read in (lambda: step.logits, lambda: step.entropy, lambda: step.top(3)):
            with pytest.raises(StaleStepError):
                read()
        assert step.proposed >= 0

    def test_hidden_states_that_nobody_asked_for_are_not_silently_old(
        self, backend: Backend
    ) -> None:
        session = backend.session(Needs.NOTHING)
        session.open(PROMPT)
        step = session.step()
        session.extend(MORE[:1])
        session.step()
        with pytest.raises(StaleStepError):
            _ = step.hidden

    def test_needs_survive(self, backend: Backend) -> None:
        model = backend.model()
        needs = Needs.ENTROPY | Needs.TOP | Needs.LOGITS
        has_hidden = model.abilities.hidden
        session = model.session(needs | Needs.HIDDEN if has_hidden else needs, top=4)
        session.open(PROMPT)
        step = session.step()
        logits = step.logits.copy()
        hidden = step.hidden.copy() if has_hidden else None
        entropy, candidates = step.entropy, step.candidates(4)
        session.steps(MORE)
        assert np.array_equal(step.logits, logits)
        if hidden is not None:
            assert hidden.shape == (model.hidden_size,)
            assert np.array_equal(step.hidden, hidden)
        assert step.entropy == entropy
        assert step.candidates(4) == candidates

    def test_sessions_do_not_disturb_each_other(self, backend: Backend) -> None:
        model = backend.model(slots=3)
        texts = [PROMPT, PROMPT[::-1], MORE + PROMPT]
        sessions = [model.session(Needs.LOGITS) for _ in texts]
        for session, ids in zip(sessions, texts, strict=True):
            session.open(ids)
            session.step()
        sessions[1].rewind(3)
        sessions[1].extend(MORE)
        sessions[1].step()
        for index in (0, 2):
            sessions[index].extend(MORE)
            expected = fresh_logits(backend, texts[index] + MORE)
            assert_close(sessions[index].step().logits, expected)
        sessions[0].close()
        sessions[1].extend(MORE)
        expected = fresh_logits(backend, texts[1][:3] + MORE + MORE)
        assert_close(sessions[1].step().logits, expected)

    def test_a_closed_session_leaves_nothing_behind(self, backend: Backend) -> None:
        model = backend.model()
        with closing(model.session(Needs.LOGITS)) as first:
            first.open(PROMPT)
            first.step()
        second = model.session(Needs.LOGITS)
        assert second.open(PROMPT) == 0
        assert_close(second.step().logits, fresh_logits(backend, PROMPT))

    def test_any_way_leads_to_the_same_logits(self, backend: Backend) -> None:
        """Random steps, batches, drafts, rollbacks and openings of two sessions."""
        rng = np.random.default_rng(7)
        model = backend.model(slots=3)
        sessions = [model.session(Needs.LOGITS), model.session(Needs.LOGITS)]
        held = [list(PROMPT), PROMPT[::-1]]
        for session, ids in zip(sessions, held, strict=True):
            session.open(ids)
        for _ in range(WALK):
            which = int(rng.integers(2))
            session, ids = sessions[which], held[which]
            new = [int(token) for token in rng.integers(0, 200, rng.integers(1, 17))]
            act = rng.choice(["write", "draft", "batch", "rewind", "open"])
            if act == "open" or len(ids) + len(new) > CONTEXT:
                kept = int(rng.integers(0, len(ids)))
                held[which] = ids = [*ids[:kept], *new[:3]]
                session.open(ids)
            elif act == "rewind":
                del ids[int(rng.integers(1, len(ids) + 1)) :]
                session.rewind(len(ids))
            elif act == "draft":
                session.step()
                session.checkpoint(len(ids))
                for token in new:
                    session.extend([token])
                    session.step()
                session.rewind(len(ids))
            elif act == "batch":
                session.steps(new)
                ids += new
            else:
                session.extend(new[:1])
                ids += new[:1]
            assert session.position == len(ids)
            with closing(model.session(Needs.LOGITS)) as fresh:
                assert fresh.open(ids) == 0
                assert_near(session.step().logits, fresh.step().logits)

    def test_a_prefix_is_kept_between_sessions(self, backend: Backend) -> None:
        try:
            model = backend.model(slots=2, keep_prefixes=True)
        except TypeError:
            pytest.skip("this backend keeps no prefixes")
        if model.abilities.rewinds == "no":
            pytest.skip("this backend cannot keep part of what it holds")
        with closing(model.session()) as first:
            first.open(PROMPT)
            first.step()
        second = model.session(Needs.LOGITS)
        assert second.open([*PROMPT, *MORE]) == len(PROMPT)
        assert_close(second.step().logits, fresh_logits(backend, [*PROMPT, *MORE]))

    def test_slots_run_out_and_come_back(self, backend: Backend) -> None:
        model = backend.model(slots=2)
        assert model.abilities.slots == 2
        first, _second = model.session(), model.session()
        with pytest.raises(UsageError, match="slots") as caught:
            model.session()
        assert caught.value.setting == "slots"
        first.close()
        first.close()
        model.session()
        with pytest.raises(UsageError, match="slots"):
            model.session()

    def test_context_overflow(self, backend: Backend) -> None:
        session = backend.session()
        full = [index % 200 + 10 for index in range(CONTEXT)]
        session.open(full[:-1])
        session.step()
        with pytest.raises(ContextOverflow, match=str(CONTEXT)) as caught:
            session.extend([1, 2])
        assert caught.value.setting == "ctx"
        assert session.position == CONTEXT - 1
        session.extend(full[-1:])
        assert session.step().position == CONTEXT
        with pytest.raises(ContextOverflow):
            session.steps([1])
        with pytest.raises(ContextOverflow):
            session.open([*full, 1])

    def test_a_step_needs_ids(self, backend: Backend) -> None:
        with pytest.raises(UsageError, match="open"):
            backend.session().step()

    def test_end_tokens_write_nothing(self, backend: Backend) -> None:
        tokenizer = backend.model().tokenizer
        assert tokenizer.eos_ids
        assert all(0 <= token < tokenizer.size for token in tokenizer.eos_ids)
        assert {tokenizer.piece(token) for token in tokenizer.eos_ids} == {b""}

    def test_special_tokens_have_text_and_write_nothing(self, backend: Backend) -> None:
        tokenizer = backend.model().tokenizer
        assert tokenizer.eos_ids <= set(tokenizer.special)
        assert all(tokenizer.special.values())
        assert {tokenizer.piece(token) for token in tokenizer.special} == {b""}

    def test_fingerprints_are_stable(self, backend: Backend) -> None:
        left, right = backend.model(), backend.model()
        assert left.fingerprint() == right.fingerprint()
        assert fingerprint(left.tokenizer) == fingerprint(right.tokenizer)


ABLE = EdgeAbilities(slots=8)
LACKING = {
    "rewinds to checkpoints": replace(ABLE, rewinds="checkpoints"),
    "no rewinds": replace(ABLE, rewinds="no"),
    "no batches": replace(ABLE, batch_logits=False),
    "nothing": EdgeAbilities(hidden=False, rewinds="no", batch_logits=False),
}


@pytest.mark.parametrize("lacking", LACKING.values(), ids=LACKING.keys())
class TestLacking:
    """An engine that can do less gives the same answers; it computes more."""

    def edge(self, lacking: EdgeAbilities) -> ScriptedEdge:
        return ScriptedEdge(noise(), context=CONTEXT, abilities=lacking)

    def test_it_says_so(self, lacking: EdgeAbilities) -> None:
        assert self.edge(lacking).abilities == lacking

    def test_a_walk_back_and_forth(self, lacking: EdgeAbilities) -> None:
        script, session = noise(), self.edge(lacking).session(Needs.LOGITS)
        session.open(PROMPT)
        for step in (session.step(), *session.steps(MORE)):
            assert np.array_equal(step.logits, script((PROMPT + MORE)[: step.position]))
        session.rewind(len(PROMPT) + 2)
        assert np.array_equal(session.step().logits, script(PROMPT + MORE[:2]))
        turned = [*PROMPT[:3], 7, 8, 9]
        assert session.open(turned) <= 3
        assert np.array_equal(session.step().logits, script(turned))
        assert session.position == len(turned)

    def test_steps_may_all_be_read_after_the_last(self, lacking: EdgeAbilities) -> None:
        session = self.edge(lacking).session()
        session.open(PROMPT)
        rows = [step.logits for step in session.steps(MORE)]
        script = noise()
        for index, row in enumerate(rows):
            assert np.array_equal(row, script(PROMPT + MORE[: index + 1]))

    def test_hidden_states(self, lacking: EdgeAbilities) -> None:
        edge = self.edge(lacking)
        if lacking.hidden:
            edge.session(Needs.HIDDEN).close()
        else:
            with pytest.raises(UsageError, match="hidden states"):
                edge.session(Needs.HIDDEN | Needs.ENTROPY)
        assert edge.sessions == 0, "a refused session takes no slot"

    def test_a_whole_answer_is_the_same(self, lacking: EdgeAbilities) -> None:
        wanted = Decoder(self.edge(ABLE), router=MaxProb(), policy=Policy(threshold=1.0))
        decoder = Decoder(self.edge(lacking), router=MaxProb(), policy=Policy(threshold=1.0))
        answers = [d.generate(PROMPT, max_tokens=20).text for d in (wanted, decoder)]
        assert answers[0] == answers[1]


def test_what_is_computed_again_where_an_engine_cannot_go_back() -> None:
    computed: dict[str, int] = {}
    for name in ("rewinds to checkpoints", "no rewinds"):
        edge = ScriptedEdge(noise(), context=CONTEXT, abilities=LACKING[name])
        session = edge.session()
        session.open(PROMPT)
        session.checkpoint(MARK)
        session.step()
        session.rewind(MARK + 2)
        session.step()
        computed[name] = session.computed_ids - len(PROMPT)
    assert computed == {"rewinds to checkpoints": 2, "no rewinds": MARK + 2}


def test_a_router_that_reads_hidden_states_is_refused_by_the_loop_too() -> None:
    class Reads:
        needs, top = Needs.HIDDEN, 0

        def score(self, step: Step) -> float:
            return float(step.hidden[0])

    edge = ScriptedEdge(noise(), abilities=EdgeAbilities(hidden=False))
    decoder = Decoder(edge, router=Reads(), policy=Policy(threshold=0.5))
    with pytest.raises(UsageError) as caught:
        decoder.generate(PROMPT)
    assert caught.value.setting == "router"
