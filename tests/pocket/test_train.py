"""Training resumes from its checkpoint as if it had never stopped."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tqdm")

from pocket.model import Llama, Shape  # noqa: E402
from pocket.train import Recipe, train  # noqa: E402

RECIPE = Recipe(Shape(vocab=32, width=32, layers=1, heads=2, ffn=32), rows=24, batch=4)
IDS = np.random.default_rng(0).integers(0, 32, (24, 16)).astype(np.int16)


def run(folder: Path, *, seed: int = 1, stop_after: int | None = None) -> Llama:
    targets = np.roll(IDS, -1, axis=1)
    return train(
        "tiny",
        RECIPE,
        IDS,
        targets,
        seed=seed,
        folder=folder,
        compiled=False,
        stop_after=stop_after,
    )


def weights(model: Llama) -> dict[str, "torch.Tensor"]:
    return model.state_dict()


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = weights(run(tmp_path / "a"))
    halfway = weights(run(tmp_path / "b", stop_after=3))
    assert not torch.equal(whole["token_embd.weight"], halfway["token_embd.weight"])
    resumed = weights(run(tmp_path / "b"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_checkpoint_of_another_run_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, seed=1, stop_after=3)
    (tmp_path / "fresh").mkdir()
    fresh = weights(run(tmp_path / "fresh", seed=2))
    other = weights(run(tmp_path, seed=2))
    assert all(torch.equal(fresh[name], other[name]) for name in fresh)
    assert "starting anew" in capsys.readouterr().err
