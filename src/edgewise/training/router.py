"""From a pair of models and questions to a calibrated checkpoint."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeModel
from edgewise.evaluation.calibration import thresholds_for
from edgewise.evaluation.oracle import Oracle
from edgewise.evaluation.tasks.base import Task
from edgewise.routers.card import Input, RouterCard
from edgewise.routers.mlp import Mlp
from edgewise.training.collect import LABEL, collect, data_of
from edgewise.training.fit import Fitted, Recipe, fit, save

SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15)
"""Cloud shares that get a threshold."""


class Trained(msgspec.Struct, frozen=True):
    """`positive` is the fraction of tokens that are worth a consult."""

    card: RouterCard
    fitted: Fitted
    positive: float


def train_router(
    task: Task,
    calibration: Task,
    folder: Path,
    *,
    edge: EdgeModel,
    cloud: LocalCloud,
    inputs: tuple[Input, ...],
    top_k: int,
    recipe: Recipe,
    stage: Callable[[str, int | None], None] = lambda name, total: None,
    done: Callable[[], None] = lambda: None,
) -> Trained:
    """Collect the oracle's answers to `task`, fit a perceptron, calibrate, write to `folder`.

    `stage` is told each stage and how many calls of `done` it will make (None: it does not say).
    """
    stage("collecting", len(task.questions))
    with closing(Oracle(edge, cloud.model, task.max_tokens)) as oracle:
        examples = collect(task, oracle, folder, done)
    stage("reading features", len(examples))
    data = data_of(examples, edge, inputs, top_k, done)
    stage("fitting", None)
    fitted = fit(data, recipe)
    card = RouterCard(
        kind="mlp",
        edge_fingerprint=edge.fingerprint(),
        tokenizer_fingerprint=edge.tokenizer.fingerprint(),
        hidden_size=edge.hidden_size,
        inputs=inputs,
        top_k=top_k if "top_logprobs" in inputs else 0,
        trained_on=f"{task.name}, {len(task.questions)} questions",
        label=LABEL,
    )
    save(folder, card, fitted)
    stage("calibrating", None)
    thresholds = thresholds_for(SHARES, Mlp(card, folder), calibration, edge=edge, cloud=cloud)
    card = replace(
        card,
        thresholds={f"{share:g}": threshold for share, threshold in thresholds.items()},
        calibrated_on=f"{calibration.name}, {len(calibration.questions)} other questions",
    )
    save(folder, card, fitted)
    return Trained(card, fitted, float(data.labels.mean()))
