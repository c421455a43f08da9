"""Training a router: examples from the oracle, a fit that beats the mean, a checkpoint."""

from pathlib import Path

import numpy as np
import pytest

from edgewise.edge.scripted import ScriptedEdge, replying
from edgewise.errors import UsageError
from edgewise.evaluation.oracle import Oracle
from edgewise.evaluation.tasks.base import Question, Task
from edgewise.routers.card import RouterCard
from edgewise.routers.features import features, needs_of, top_of
from edgewise.routers.mlp import Mlp
from edgewise.training.collect import Data, collect, data_of
from edgewise.training.fit import Recipe, fit, save

INPUTS = ("hidden", "top_logprobs", "scalars")
PROMPT = "How many?"
TASK = Task(
    "sums", tuple(Question(f"{i}", "sums", PROMPT, "7", "number") for i in range(3)), max_tokens=40
)


def edge(text: str = "So it is 3.") -> ScriptedEdge:
    return ScriptedEdge(replying(text, prompt=PROMPT))


def test_the_token_beyond_repair_is_the_only_label(tmp_path: Path) -> None:
    oracle = Oracle(edge(), edge("Oh it is 7."), TASK.max_tokens)
    examples = collect(TASK, oracle, tmp_path)
    assert [bytes(e.ids[:-1]).decode() for e in examples] == ["So it is 7."] * 3
    found = data_of(examples, edge(), INPUTS, 5)
    assert found.inputs.shape == (3 * 12, 4 + 5 + 3)
    assert list(np.flatnonzero(found.labels)) == [9, 21, 33]
    assert list(np.bincount(found.groups)) == [12, 12, 12]


def test_rows_are_what_the_router_sees_at_run_time(tmp_path: Path) -> None:
    oracle = Oracle(edge(), edge("Oh it is 7."), TASK.max_tokens)
    examples = collect(TASK, oracle, tmp_path)
    found = data_of(examples[:1], edge(), INPUTS, 5)
    session = edge().session(needs_of(INPUTS), top=top_of(INPUTS, 5))
    session.open(examples[0].prompt)
    for row, token in zip(found.inputs, examples[0].ids, strict=True):
        np.testing.assert_allclose(features(session.step(), INPUTS, 5), row, rtol=1e-5)
        session.extend([token])


def test_an_interrupted_collection_goes_on(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    oracle = Oracle(edge(), edge("Oh it is 7."), TASK.max_tokens)
    with pytest.raises(Stopped):
        collect(TASK, oracle, tmp_path, stop)
    kept = (tmp_path / "traces.jsonl").read_bytes()
    (tmp_path / "traces.jsonl").write_bytes(kept + b'{"question"')  # killed in the next line
    assert len(collect(TASK, oracle, tmp_path)) == 3
    assert (tmp_path / "traces.jsonl").read_bytes().startswith(kept)
    assert (tmp_path / "traces.jsonl").read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("text", ["So it is 7.", "So it is 4."])
def test_a_pair_without_repairs_has_nothing_to_learn(tmp_path: Path, text: str) -> None:
    oracle = Oracle(edge(text), edge(text), TASK.max_tokens)
    with pytest.raises(UsageError, match="nothing to learn"):
        data_of(collect(TASK, oracle, tmp_path), edge(text), INPUTS, 5)


RECIPE = Recipe(hidden=(8,), epochs=20, batch=128, rate=1e-2)


def planted(rows: int = 4000) -> Data:
    """Labels that the fourth input decides, nearly."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((rows, 12)).astype(np.float32)
    labels = (inputs[:, 3] + 0.2 * rng.standard_normal(rows) > 1.5).astype(np.float32)
    return Data(inputs, labels, (np.arange(rows) // 10).astype(np.int32))


def test_a_fit_finds_what_decides(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    fitted = fit(planted(), RECIPE)
    assert fitted.loss < 0.5 * fitted.baseline_loss
    again = fit(planted(), RECIPE)
    assert all(np.array_equal(fitted.tensors[name], again.tensors[name]) for name in again.tensors)
    card = RouterCard(
        kind="mlp",
        edge_fingerprint="scripted",
        tokenizer_fingerprint="bytes",
        hidden_size=4,
        inputs=INPUTS,
        top_k=5,
    )
    save(tmp_path, card, fitted)
    router = Mlp(card, tmp_path)
    session = edge().session(router.needs, top=router.top)
    session.open([1, 2, 3])
    assert 0 <= router.score(session.step()) <= 1


def test_labels_of_one_class_are_refused() -> None:
    pytest.importorskip("torch")
    data = planted()
    with pytest.raises(UsageError, match="too few answers"):
        fit(Data(data.inputs, np.zeros_like(data.labels), data.groups), Recipe())
