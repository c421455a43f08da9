"""Training resumes from its checkpoint as if it had never stopped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tqdm")

from pocket.model import Shape  # noqa: E402
from pocket.train import Recipe, train  # noqa: E402

RECIPE = Recipe(Shape(vocab=32, width=32, layers=1, heads=2, ffn=32), rows=24, batch=4)
IDS = np.random.default_rng(0).integers(0, 32, (24, 16)).astype(np.int16)


def run(folder: Path, *, seed: int = 1, stop_after: int | None = None) -> dict[str, Any]:
    """The weights."""
    folder.mkdir(exist_ok=True)
    how: dict[str, Any] = {"seed": seed, "folder": folder, "stop_after": stop_after}
    targets = np.roll(IDS, -1, axis=1)
    return train("tiny", RECIPE, IDS, targets, compiled=False, **how).state_dict()


def test_a_resumed_run_ends_with_the_same_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(tmp_path / "a")
    halfway = run(tmp_path / "b", stop_after=3)
    assert not torch.equal(whole["token_embd.weight"], halfway["token_embd.weight"])
    resumed = run(tmp_path / "b")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    # A checkpoint of another run is not resumed.
    run(tmp_path / "c", stop_after=3)
    fresh, other = run(tmp_path / "d", seed=2), run(tmp_path / "c", seed=2)
    assert all(torch.equal(fresh[name], other[name]) for name in fresh)
    assert "starting anew" in capsys.readouterr().err
