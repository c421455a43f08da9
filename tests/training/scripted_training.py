"""A training of two scripted models with a router that is fitted with numpy, without torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import Step
from edgewise.routers.card import CONFIG, WEIGHTS, RouterCard
from edgewise.routers.signals import needs_of, reader_of, top_of
from edgewise.testing.scripted_cloud import Failing, ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise_lab.evaluation.tasks.base import TRAINED_ON, Question, Task
from edgewise_lab.training.fit import Data, Fitted, Recipe, held_out
from edgewise_lab.training.labels.base import LABELS, Case, Label, Labelling
from edgewise_lab.training.router import Training

KIND = f"{__name__}:Linear"
PROMPT = "How many {:02d}?"
EDGE, CLOUD = "So it is 3.", "Oh it is 7."
INPUTS: tuple[str, ...] = ("hidden", "scalars")


class Mismatch(Label):
    """Where the models differ: nobody is asked for it."""

    name = "mismatch"
    described = "the edge's token differs from the cloud's"

    def of(self, case: Case) -> Labelling:
        yield from ()
        return [float(at in case.mismatches) for at in range(len(case.proposed))]


def sums(start: int, count: int, *, known: bool = True) -> Task:
    answer = "7" if known else ""
    questions = (
        Question(f"{i}", "sums", PROMPT.format(i), answer, "number", known=known)
        for i in range(start, start + count)
    )
    return Task("sums", tuple(questions), max_tokens=30)


def scripted(text: str) -> ScriptedEdge:
    return ScriptedEdge(replying(text, prompt=PROMPT.format(0), unsure=range(len(text))))


def scripted_cloud(**options: Any) -> ScriptedCloud:
    return ScriptedCloud(replying(CLOUD, prompt=PROMPT.format(0)), **options)


def training(
    folder: Path,
    label: str = "mismatch",
    *,
    fault: Failing = lambda ask: None,
    cloud: CloudModel | None = None,
    known: bool = True,
    **more: Any,
) -> Training:
    return Training(
        sums(0, 20, known=known),
        sums(50, 3, known=known),
        folder,
        edge=more.pop("edge", None) or scripted(EDGE),
        cloud=cloud or scripted_cloud(fault=fault),
        label=Mismatch() if label == "mismatch" else LABELS.load(label)(),
        inputs=more.pop("inputs", INPUTS),
        recipe=more.pop("recipe", Recipe(epochs=2)),
        kind=more.pop("kind", KIND),
        **more,
    )


def fit(one: Training) -> None:
    """With all that comes before."""
    one.collect()
    one.label()
    one.fit()


def made(folder: Path) -> dict[str, bytes]:
    """A checkpoint's files."""
    return {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS, TRAINED_ON)}


def planted(rows: int) -> Data:
    """Labels that the fourth input decides, nearly."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((rows, 12)).astype(np.float32)
    labels = (inputs[:, 3] + 0.2 * rng.standard_normal(rows) > 1.5).astype(np.float32)
    groups = (np.arange(rows) // 10).astype(np.int32)
    return Data(inputs, labels, groups, np.zeros(rows, np.int32))


class Linear:
    """Ridge regression over normalised inputs."""

    def __init__(self, card: RouterCard, folder: Path) -> None:
        self.needs, self.top = needs_of(card.inputs), top_of(card.inputs, card.top_k)
        self._read = reader_of(card.inputs, card.top_k, card.reference)
        self._tensors = load_file(folder / WEIGHTS)

    @classmethod
    def load(cls, card: RouterCard, folder: Path) -> "Linear":
        return cls(card, folder)

    @classmethod
    def fit(cls, data: Data, recipe: Recipe, done: Callable[[], None]) -> Fitted:
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
