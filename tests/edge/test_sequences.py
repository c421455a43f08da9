"""Sequences that llama.cpp runs together, beside a model's sessions."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgewise.edge.base import Chunk, Floats, Needs, Sequences
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.errors import ModelError

CONTEXT, ATOL = 64, 0.02
A, B, C = [70, 101, 20], [40, 41, 42, 43, 44], [200, 100]


@pytest.fixture
def model(bpe_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(bpe_path, context=CONTEXT, threads=1, gpu_layers=0, slots=2) as loaded:
        yield loaded


@pytest.fixture
def sequences(model: LlamaModel) -> Iterator[Sequences]:
    with closing(model.sequences(4)) as made:
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
def test_how_many_fit(long_path: Path, context: int, wanted: int, width: int) -> None:
    """llama.cpp wants room for an id of each in one decode, and memory is bounded."""
    with (
        LlamaModel(long_path, context=context, threads=1, gpu_layers=0) as model,
        closing(model.sequences(wanted)) as sequences,
    ):
        assert sequences.width == width
        assert sequences.room == min(512, context)


def test_a_decode_that_fails_is_one_sentence(
    sequences: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "llama_decode", lambda *_: 1)
    with pytest.raises(ModelError) as caught:
        sequences.run([Chunk(0, 0, A, True), Chunk(1, 0, B, False)])
    assert str(caught.value).startswith("llama.cpp could not decode 8 tokens (code 1); lower ")
    assert caught.value.setting == "ctx"
