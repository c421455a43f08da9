"""A router that is fitted with numpy, so that every stage of a training runs without torch."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from edgewise.edge.base import Step
from edgewise.routers.card import WEIGHTS, RouterCard
from edgewise.routers.signals import needs_of, reader_of, top_of
from edgewise_lab.training.fit import Data, Fitted, Recipe, held_out

KIND = f"{__name__}:Linear"


def planted(rows: int) -> Data:
    """Labels that the fourth input decides, nearly."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((rows, 12)).astype(np.float32)
    labels = (inputs[:, 3] + 0.2 * rng.standard_normal(rows) > 1.5).astype(np.float32)
    groups = (np.arange(rows) // 10).astype(np.int32)
    return Data(inputs, labels, groups, np.zeros(rows, np.int32))


class Linear:
    """Ridge regression over normalised inputs."""

    recipes: list[Recipe] = []  # noqa: RUF012
    """Every recipe that a fit was given."""

    data: list[Data] = []  # noqa: RUF012
    """And what it learnt from."""

    def __init__(self, card: RouterCard, folder: Path) -> None:
        self.needs, self.top = needs_of(card.inputs), top_of(card.inputs, card.top_k)
        self._read = reader_of(card.inputs, card.top_k, card.reference)
        self._tensors = load_file(folder / WEIGHTS)

    @classmethod
    def load(cls, card: RouterCard, folder: Path) -> "Linear":
        return cls(card, folder)

    @classmethod
    def fit(cls, data: Data, recipe: Recipe, done: Callable[[], None]) -> Fitted:
        cls.recipes.append(recipe)
        cls.data.append(data)
        apart = held_out(data, recipe.held_out, recipe.seed)
        mean, std = data.inputs.mean(axis=0), data.inputs.std(axis=0) + 1e-3
        rows = np.column_stack([(data.inputs - mean) / std, np.ones_like(data.labels)])
        kept = rows[~apart]
        square = kept.T @ kept + np.eye(kept.shape[1], dtype=np.float32)
        weights = np.linalg.solve(square, kept.T @ data.labels[~apart]).astype(np.float32)
        for _ in range(recipe.epochs):
            done()
        labels = data.labels[apart]
        scores = np.clip(rows[apart] @ weights, 0.001, 0.999)
        tensors = {"mean": mean, "std": std, "weights": weights}
        loss, baseline = np.mean((scores - labels) ** 2), labels.var()
        return Fitted(tensors, float(loss), float(baseline), scores, labels)

    def score(self, step: Step) -> float:
        held = self._tensors
        x = (self._read(step) - held["mean"]) / held["std"]
        return float(np.clip(x @ held["weights"][:-1] + held["weights"][-1], 0.0, 1.0))
