"""How a router is fitted: the rows, what decides, and sentences where there is nothing to find."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError
from edgewise.routers.card import RouterCard
from edgewise.routers.mlp import TABLE, Mlp
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise_lab.training.collect import KEPT, Columns
from edgewise_lab.training.fit import (
    Data,
    Fitted,
    Recipe,
    data_of,
    embeddings_of,
    fit,
    fit_of,
    fitted,
    held_out,
)
from edgewise_lab.training.publish import save_weights
from tests.training.scripted_training import KIND, Linear, planted

INPUTS: tuple[str, ...] = ("hidden", "top_logprobs", "scalars")
RECIPE = Recipe(hidden=(8,), epochs=20, batch=128, rate=1e-2)
CARD = RouterCard(
    kind="mlp",
    edge_fingerprint="scripted",
    tokenizer_fingerprint="bytes",
    hidden_size=4,
    inputs=INPUTS,
    top_k=4,
)


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@needs_torch
def test_a_fit_finds_what_decides(tmp_path: Path) -> None:
    fitted = fit(planted(4000), RECIPE)
    assert fitted.loss < 0.5 * fitted.baseline_loss
    again = fit(planted(4000), RECIPE)
    assert all(np.array_equal(fitted.tensors[name], again.tensors[name]) for name in again.tensors)
    save_weights(tmp_path, fitted.tensors, ["a question"])
    router = Mlp(CARD, tmp_path)
    session = ScriptedEdge(noise()).session(router.needs, top=router.top)
    session.open([1, 2, 3])
    assert 0 <= router.score(session.step()) <= 1


def rare(rows: int, *, known: bool = True) -> Data:
    """Positives of 5% among inputs of which four say which they are, or none does."""
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((rows, 64)).astype(np.float32)
    labels = inputs[:, :4].sum(axis=1) + 0.5 * rng.standard_normal(rows) > 3.4
    if not known:
        rng.shuffle(labels)
    groups = (np.arange(rows) // 20).astype(np.int32)
    return Data(inputs, labels.astype(np.float32), groups, np.zeros(rows, np.int32))


@needs_torch
@pytest.mark.parametrize("rows", [1200, 4480])
def test_a_small_set_is_learnt_from(rows: int) -> None:
    """In batches for a large one it would see too few updates to come to a constant's loss."""
    fitted = fit(rare(rows), Recipe())
    assert fitted.loss < 0.8 * fitted.baseline_loss


@needs_torch
def test_the_token_itself_can_decide(tmp_path: Path) -> None:
    """Labels that only the proposed token explains; its embedding is folded into a table."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((258, 6)).astype(np.float32)
    proposed = rng.integers(0, 258, 4000).astype(np.int32)
    labels = (table[proposed, 2] > 1.0).astype(np.float32)
    groups = (np.arange(4000) // 10).astype(np.int32)
    data = Data(np.empty((4000, 0), np.float32), labels, groups, proposed, embeddings=table)
    fitted = fit(data, RECIPE)
    assert fitted.loss < 0.2 * fitted.baseline_loss
    assert fitted.tensors[TABLE].shape == (258, 8)
    save_weights(tmp_path, fitted.tensors, [])
    card = msgspec.structs.replace(CARD, inputs=("token_embedding",), top_k=0)
    router = Mlp(card, tmp_path)
    session = ScriptedEdge(noise()).session(router.needs, top=router.top)
    for start in range(8):
        session.open([start, 7])
        step = session.step()
        assert (router.score(step) > 0.5) == (table[step.proposed, 2] > 1.0)


@needs_torch
def test_embeddings_are_those_of_the_file() -> None:
    with LlamaModel(bundled("edge"), threads=1) as edge:
        found = embeddings_of(edge)
        assert found.shape == (edge.tokenizer.size, edge.hidden_size)
        assert np.isfinite(found).all()
        assert found.std() > 0
    with pytest.raises(UsageError, match="token_embedding"):
        embeddings_of(ScriptedEdge(noise()))


@needs_torch
def test_rows_that_say_nothing_score_the_share_of_positives() -> None:
    assert fit(rare(4480, known=False), RECIPE).scores.mean() == pytest.approx(0.05, abs=0.02)


MARKED = {str(i): [0.0, 0.0, 1.0, 0.0, 0.0] for i in range(4)}


def columns(answers: int = 4, tokens: int = 5) -> Columns:
    rng = np.random.default_rng(0)
    n = answers * tokens
    widths = {"hidden": 4, "top_logprobs": KEPT, "scalars": 4}
    return Columns(
        tuple(str(i) for i in range(answers)),
        np.repeat(np.arange(answers, dtype=np.int32), tokens),
        np.arange(n, dtype=np.int32),
        np.arange(n, dtype=np.int32),
        {name: rng.standard_normal((n, widths[name])).astype(np.float32) for name in widths},
    )


def test_rows_hold_the_inputs_asked_for() -> None:
    data = data_of(columns(), MARKED, inputs=("scalars", "top_logprobs"), top_k=3, embeddings=None)
    assert data.inputs.shape == (20, 7)
    assert np.array_equal(data.inputs[:, :4], columns().inputs["scalars"])
    assert list(np.flatnonzero(data.labels)) == [2, 7, 12, 17]
    # The embedding is no column.
    table = np.zeros((30, 6), np.float32)
    for inputs, width in ((("token_embedding",), 0), (("hidden", "token_embedding"), 4)):
        data = data_of(columns(), MARKED, inputs=inputs, top_k=0, embeddings=table)
        assert data.inputs.shape == (20, width)
        assert data.embeddings is not None
    data = data_of(columns(), MARKED, inputs=("hidden",), top_k=0, embeddings=table)
    assert data.inputs.shape == (20, 4)
    assert data.embeddings is None
    short = {name: values[:2] for name, values in MARKED.items()}
    with pytest.raises(UsageError, match="labels"):  # of other texts
        data_of(columns(), short, inputs=("hidden",), top_k=0, embeddings=None)


@given(
    texts=st.integers(2, 40),
    tokens=st.integers(1, 9),
    fraction=st.floats(0.0, 0.9),
    seed=st.integers(0, 5),
)
def test_whole_texts_are_held_out(texts: int, tokens: int, fraction: float, seed: int) -> None:
    n, groups = texts * tokens, np.repeat(np.arange(texts, dtype=np.int32), tokens)
    inputs, labels = np.zeros((n, 1), np.float32), np.ones(n, np.float32)
    data = Data(inputs, labels, groups, np.zeros(n, np.int32))
    mask = held_out(data, fraction, seed)
    apart, kept = set(groups[mask]), set(groups[~mask])
    assert apart
    assert kept
    assert not apart & kept
    assert len(apart) == max(1, int(fraction * texts))
    assert np.array_equal(mask, held_out(data, fraction, seed))


HERE = __name__
SCORES, TRUE = np.array([0.2, 0.8], np.float32), np.array([0.0, 1.0], np.float32)
GOOD = Fitted({"weights": np.ones(3, np.float32)}, 0.1, 0.2, SCORES, TRUE)


class Odd(Linear):
    """Gives back what it is told to."""

    gives: Any = GOOD

    @classmethod
    def fit(cls, data: Data, recipe: Recipe, done: Callable[[], None]) -> Fitted:
        done()
        return cls.gives


class Unloaded:
    """Learns, but nothing can be made of it."""

    @staticmethod
    def fit(data: Data, recipe: Recipe, done: Callable[[], None]) -> Fitted:
        return GOOD

    def score(self, step: object) -> float:
        return 0.0


class Unfitted:
    """Is loaded, but never learns."""

    @classmethod
    def load(cls, card: object, folder: object) -> "Unfitted":
        return cls()

    def score(self, step: object) -> float:
        return 0.0


def test_a_kind_brings_its_fit() -> None:
    counted: list[None] = []
    found = fitted(KIND, planted(400), Recipe(epochs=3), lambda: counted.append(None))
    assert len(counted) == 3
    assert found.loss < found.baseline_loss
    assert set(found.tensors) == {"mean", "std", "weights"}
    assert len(found.scores) == len(found.labels) == 40


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("entropy", "cannot be trained: it has no fit"),
        (f"{HERE}:Unfitted", "cannot be trained: it has no fit"),
        (f"{HERE}:Unloaded", "cannot be trained: it has no load"),
        ("magic", "There is no router 'magic'"),
        (f"{HERE}:Nobody", "no attribute 'Nobody'"),
    ],
)
def test_a_kind_that_does_not_learn(kind: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        fit_of(kind)


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is here")
def test_the_perceptron_needs_torch_and_says_so() -> None:
    with pytest.raises(UsageError, match=r"edgewise\[lab\]"):
        fit_of("mlp")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (None, "gave a NoneType, no Fitted"),
        ({"tensors": {"w": [1.0]}}, "'w' that"),
        ({"tensors": {"w": np.ones(2, np.int64)}}, "'w' that"),
        ({"tensors": {"w": np.array([np.nan])}}, "'w' with weights that are not numbers"),
        ({"scores": np.ones(3, np.float32)}, "scores and labels that do not go together"),
        ({"scores": np.empty(0), "labels": np.empty(0)}, "do not go together"),
        ({"scores": np.array([0.5, 1.5], np.float32)}, "not from 0 to 1"),
        ({"labels": np.array([0.0, -1.0], np.float32)}, "not from 0 to 1"),
        ({"loss": float("nan")}, "losses that are not numbers"),
        ({"baseline_loss": float("inf")}, "losses that are not numbers"),
    ],
)
def test_a_fit_that_gives_back_something_odd(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any] | None, problem: str
) -> None:
    monkeypatch.setattr(Odd, "gives", None if more is None else replace(GOOD, **more))
    with pytest.raises(UsageError, match=problem) as caught:
        fitted(f"{HERE}:Odd", planted(400), Recipe(), lambda: None)
    assert caught.value.hint == "repair its class"
