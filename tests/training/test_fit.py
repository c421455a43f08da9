"""Fits that find what decides, and sentences where there is nothing to find."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError
from edgewise.routers.card import RouterCard
from edgewise.routers.mlp import TABLE, Mlp
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise_lab.training.fit import Data, Recipe, embeddings_of, fit
from edgewise_lab.training.publish import save_weights
from tests.training.linear import planted

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


@pytest.fixture(autouse=True)
def torch() -> None:
    pytest.importorskip("torch")


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


@pytest.mark.parametrize("rows", [1200, 4480])
def test_a_small_set_is_learnt_from(rows: int) -> None:
    """In batches for a large one it would see too few updates to come to a constant's loss."""
    fitted = fit(rare(rows), Recipe())
    assert fitted.loss < 0.8 * fitted.baseline_loss


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


def test_embeddings_are_those_of_the_file() -> None:
    with LlamaModel(bundled("edge"), threads=1) as edge:
        found = embeddings_of(edge)
        assert found.shape == (edge.tokenizer.size, edge.hidden_size)
        assert np.isfinite(found).all()
        assert found.std() > 0
    with pytest.raises(UsageError, match="token_embedding"):
        embeddings_of(ScriptedEdge(noise()))


def test_rows_that_say_nothing_score_the_share_of_positives() -> None:
    assert fit(rare(4480, known=False), RECIPE).scores.mean() == pytest.approx(0.05, abs=0.02)
