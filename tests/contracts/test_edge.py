"""What every edge backend promises, run against each of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edgewise.edge.base import EdgeAbilities, EdgeModel, EdgeSession, Floats, Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import ContextOverflow, StaleStepError, UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import MaxProb
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from tests.hybrid_models import HYBRIDS, HybridPaths

CONTEXT = 64
PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100, 33]
MORE = [40, 41, 42, 43, 44]
ATOL = 0.02
"""Batched and one-by-one decodes differ in rounding; other inputs differ by more than 1."""
WALK, NEAR = 100, 1e-2
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

    def count(
        self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, size: Callable[[Any], int]
    ) -> None:
        """Note how many ids each call of `owner.name` runs: the `size` of its last argument."""
        call = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            self.runs.append(size(arguments[-1]))
            return call(*arguments)

        monkeypatch.setattr(owner, name, counted)

    def close(self) -> None:
        for model in self.open_models:
            model.close()

    def computed(self) -> int:
        model = self.open_models[-1]
        return model.computed if isinstance(model, ScriptedEdge) else sum(self.runs)


@pytest.fixture(params=["bpe", "spm", "scripted", "gemma3", *HYBRIDS])
def backend(
    request: pytest.FixtureRequest,
    bpe_path: Path,
    spm_path: Path,
    hybrid_paths: HybridPaths,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Backend]:
    options: dict[str, Any] = {"threads": 1, "gpu_layers": 0}
    if request.param == "scripted":
        made = Backend(
            lambda context, slots: ScriptedEdge(
                noise(), context=context, abilities=EdgeAbilities(slots=slots)
            )
        )
    else:
        plain = {"bpe": bpe_path, "spm": spm_path}.get(request.param)
        path = plain or hybrid_paths[request.param]
        made = Backend(lambda **more: LlamaModel(path, **options, **more))
        made.count(monkeypatch, llama_cpp, "llama_decode", lambda batch: batch.n_tokens)
    with closing(made):
        yield made


def read(model: EdgeModel, ids: Sequence[int]) -> tuple[int, Floats]:
    """How many ids were kept, and the logits after all of them."""
    with closing(model.session(Needs.LOGITS)) as session:
        kept = session.open(ids)
        return kept, session.step().logits.copy()


def logits_after(model: EdgeModel, ids: Sequence[int]) -> Floats:
    """From a session that has seen nothing else."""
    kept, logits = read(model, ids)
    assert kept == 0
    return logits


def assert_close(left: Floats, right: Floats) -> None:
    np.testing.assert_allclose(left, right, atol=ATOL, rtol=0)


def assert_near(left: Floats, right: Floats) -> None:
    """After a long walk, batches of many sizes."""
    np.testing.assert_allclose(left, right, atol=NEAR * float(np.abs(right).max()), rtol=0)


def assert_heads_input(model: EdgeModel, head: Floats, *, atol: float) -> None:
    """That the logits are what the matrix `head` makes of the hidden states."""
    with closing(model.session(Needs.HIDDEN | Needs.LOGITS)) as session:
        session.open(PROMPT)
        for step in [session.step(), *session.steps(MORE)]:
            np.testing.assert_allclose(head @ step.hidden, step.logits, atol=atol)


class TestEdge:
    def test_step_stands_behind_every_id(self, backend: Backend) -> None:
        session = backend.session()
        with pytest.raises(UsageError, match="open"):
            session.step()
        assert session.open(PROMPT) == 0
        assert session.position == len(PROMPT)
        step = session.step()
        assert step.position == len(PROMPT)
        assert step.proposed == int(np.argmax(step.logits))
        assert step.size == len(step.logits) == backend.open_models[0].tokenizer.size
        changed = [PROMPT[0] + 1, *PROMPT[1:]]
        assert np.abs(step.logits - logits_after(backend.model(), changed)).max() > 10 * ATOL

    def test_nothing_is_computed_twice(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT)
        session.step()
        assert backend.computed() == len(PROMPT)
        session.extend(MORE[:2])
        session.step()
        session.step()
        session.steps(MORE[2:])
        assert backend.computed() == len(PROMPT + MORE)

    def test_open_keeps_the_common_prefix(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT + MORE)
        expected = session.step().logits.copy()
        before = backend.computed()
        assert session.open(PROMPT + MORE) == len(PROMPT + MORE)
        assert_close(session.step().logits, expected)
        assert backend.computed() == before
        turned = [*PROMPT, MORE[0] + 1, *MORE[1:]]
        kept = session.open(turned)
        if backend.open_models[0].abilities.rewinds == "anywhere":
            assert kept == len(PROMPT)
        assert kept <= len(PROMPT)
        logits = session.step().logits
        assert backend.computed() - before == len(turned) - kept
        assert_close(logits, logits_after(backend.model(), turned))

    def test_rewind_only_goes_back(self, backend: Backend) -> None:
        session = backend.session()
        session.open(PROMPT)
        for position in (-1, len(PROMPT) + 1):
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
            assert_close(row, logits_after(backend.model(), PROMPT + MORE[: index + 1]))

    def test_views_are_stale_after_the_next_decode(self, backend: Backend) -> None:
        session = backend.session(Needs.NOTHING)
        session.open(PROMPT)
        step = session.step()
        assert step.logits.shape == (backend.open_models[0].tokenizer.size,)
        session.extend(MORE[:1])
        session.step()
        calls = (
            lambda: step.logits,
            lambda: step.entropy,
            lambda: step.top(3),
            lambda: step.hidden,
        )
        for stale in calls:
            with pytest.raises(StaleStepError):
                stale()
        assert step.proposed >= 0

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

    def test_a_closed_session_leaves_nothing_behind(self, backend: Backend) -> None:
        model = backend.model()
        with closing(model.session(Needs.LOGITS)) as first:
            first.open(PROMPT)
            first.step()
        second = model.session(Needs.LOGITS)
        assert second.open(PROMPT) == 0
        assert_close(second.step().logits, logits_after(backend.model(), PROMPT))

    def test_any_way_leads_to_the_same_logits(self, backend: Backend) -> None:
        """Random steps, batches, drafts, rollbacks and openings of two sessions, beside a third."""
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
            assert_near(session.step().logits, logits_after(model, ids))

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
        assert_close(second.step().logits, logits_after(backend.model(), [*PROMPT, *MORE]))

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

    def test_a_vocabulary(self, backend: Backend) -> None:
        """Special tokens have text and write nothing; fingerprints are stable."""
        left, right = backend.model(), backend.model()
        assert left.fingerprint() == right.fingerprint()
        assert fingerprint(left.tokenizer) == fingerprint(right.tokenizer)
        tokenizer = left.tokenizer
        assert set() < tokenizer.eos_ids <= set(tokenizer.special) <= set(range(tokenizer.size))
        assert all(tokenizer.special.values())
        assert {tokenizer.piece(token) for token in tokenizer.special} == {b""}


ABLE = EdgeAbilities(slots=8)
LACKING = {
    "rewinds to checkpoints": replace(ABLE, rewinds="checkpoints"),
    "no rewinds": replace(ABLE, rewinds="no"),
    "no batches": replace(ABLE, batch_logits=False),
    "nothing": EdgeAbilities(hidden=False, rewinds="no", batch_logits=False),
}


@pytest.mark.parametrize("lacking", LACKING.values(), ids=LACKING.keys())
def test_an_engine_that_can_do_less_gives_the_same_answer(lacking: EdgeAbilities) -> None:
    edges = [ScriptedEdge(noise(), context=CONTEXT, abilities=it) for it in (ABLE, lacking)]
    decoders = [Decoder(one, router=MaxProb(), policy=Policy(threshold=1.0)) for one in edges]
    answers = [decoder.generate(PROMPT, max_tokens=20).text for decoder in decoders]
    assert answers[0] == answers[1]
