"""Sequences that llama.cpp runs together, beside a model's sessions."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.edge.base import Floats, Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.errors import ModelError
from edgewise_lab.sequences import Chunk, LlamaSequences, Sequences, width_for
from tests import models
from tests.hybrid_models import HybridPaths

CONTEXT, ATOL = 64, 0.02
LONG = [(7 * index) % 250 for index in range(40)]
A, B, C = [70, 101, 20], [40, 41, 42, 43, 44], [200, 100]


def load(path: Path) -> LlamaModel:
    return LlamaModel(path, context=128, threads=1, gpu_layers=0)


@pytest.fixture
def model(bpe_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(bpe_path, context=CONTEXT, threads=1, gpu_layers=0, slots=2) as loaded:
        yield loaded


@pytest.fixture
def sequences(model: LlamaModel) -> Iterator[Sequences]:
    with closing(LlamaSequences(model, 4)) as made:
        yield made


def logits_after(model: LlamaModel, ids: list[int]) -> Floats:
    """By a session."""
    with closing(model.session(Needs.LOGITS)) as session:
        session.open(ids)
        return session.step().logits.copy()


def assert_close(left: Floats, right: Floats) -> None:
    np.testing.assert_allclose(left, right, atol=ATOL, rtol=0)


def test_each_goes_on_as_a_session_would(model: LlamaModel, sequences: Sequences) -> None:
    a, b, c = sequences.run([Chunk(0, 0, A, True), Chunk(1, 0, B, True), Chunk(3, 0, C, True)])
    assert [step.position for step in (a, b, c)] == [len(A), len(B), len(C)]
    for step, ids in ((a, A), (b, B), (c, C)):
        assert_close(step.logits, logits_after(model, ids))
    (b,) = sequences.run([Chunk(0, len(A), [9], False), Chunk(1, len(B), [7], True)])
    assert_close(b.logits, logits_after(model, [*B, 7]))
    (a,) = sequences.run([Chunk(0, len(A) + 1, [3], True)])
    assert_close(a.logits, logits_after(model, [*A, 9, 3]))


def test_one_goes_back_and_the_others_do_not(model: LlamaModel, sequences: Sequences) -> None:
    sequences.run([Chunk(0, 0, A + C, False), Chunk(1, 0, B, False)])
    assert sequences.forget(0, len(A)) == len(A)
    a, b = sequences.run([Chunk(0, len(A), [5], True), Chunk(1, len(B), [6], True)])
    assert_close(a.logits, logits_after(model, [*A, 5]))
    assert_close(b.logits, logits_after(model, [*B, 6]))


def test_sessions_are_not_disturbed(model: LlamaModel, sequences: Sequences) -> None:
    with closing(model.session(Needs.LOGITS)) as session:
        session.open(A)
        session.step()
        sequences.run([Chunk(0, 0, C, False), Chunk(1, 0, B, True)])
        session.extend(B)
        assert_close(session.step().logits, logits_after(model, A + B))


@pytest.mark.parametrize(
    ("context", "wanted", "width"), [(64, 1, 1), (64, 8, 8), (4, 32, 4), (8192, 32, 4)]
)
def test_how_many_fit(tmp_path: Path, context: int, wanted: int, width: int) -> None:
    """llama.cpp wants room for an id of each in one decode, and memory is bounded."""
    path = models.write_transformer(tmp_path / "long.gguf", models.byte_level(), context=8192)
    with (
        LlamaModel(path, context=context, threads=1, gpu_layers=0) as model,
        closing(LlamaSequences(model, wanted)) as sequences,
    ):
        assert sequences.width == width
        assert sequences.max_batch_ids == min(512, context)


def test_a_decode_that_fails_is_one_sentence(
    sequences: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "llama_decode", lambda *_: 1)
    with pytest.raises(ModelError) as caught:
        sequences.run([Chunk(0, 0, A, True), Chunk(1, 0, B, False)])
    assert str(caught.value).startswith("llama.cpp could not decode 8 tokens (code 1); lower ")
    assert caught.value.setting == "ctx"


class TestRollouts:
    def test_neighbouring_prefixes_are_not_read_again(
        self, hybrid_paths: HybridPaths, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runs: list[int] = []
        decode = llama_cpp.llama_decode

        def counted(context: Any, batch: Any) -> int:
            runs.append(batch.n_tokens)
            return decode(context, batch)

        monkeypatch.setattr(llama_cpp, "llama_decode", counted)
        with load(hybrid_paths["qwen35"]) as model, closing(LlamaSequences(model, 2)) as sequences:
            sequences.run([Chunk(0, 0, LONG[:20], True), Chunk(1, 0, LONG[5:20], True)])
            for position in range(20, 24):
                sequences.run([Chunk(0, position, [position], True)])
            assert sequences.forget(0, 20) == 20
            runs.clear()
            (step,) = sequences.run([Chunk(0, 20, LONG[20:30], True)])
            assert runs == [10]
            assert_close(step.logits, logits_after(model, LONG[:30]))
            # The same prefix again: its last id has no logits any more.
            assert sequences.forget(0, 29) == 20
            (step,) = sequences.run([Chunk(1, 15, [1], True)])
            assert_close(step.logits, logits_after(model, [*LONG[5:20], 1]))

    @pytest.mark.parametrize(
        ("state", "width"), [(0, 32), (1 << 10, 32), (20 << 20, 17), (56 << 20, 6), (1 << 40, 1)]
    )
    def test_how_many_fit_in_memory(self, state: int, width: int) -> None:
        """With two checkpoints each, in a gibibyte."""
        assert width_for(32, 512, state) == width
