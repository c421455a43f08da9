"""What more texts teach a router: `python -m benchmarks.real_weights.learning --label both`.

Of the texts that a run in `--work` labelled, each fifth of the rows (an element, a country, a noun)
is scored by routers fitted to the others: to all of their texts, to parts of them, to the cloud's
answers alone, to walks alone. Prints how many of the tokens that are worth a consult lie among the
highest scores, as Markdown.
"""

import argparse
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_weights.stages import ANSWERS, CONTEXT, LABELS
from benchmarks.real_weights.walks import ValueOrWalk
from edgewise.edge.base import Floats
from edgewise.edge.llamacpp import LlamaModel
from edgewise_lab.evaluation.store import read
from edgewise_lab.tables import line
from edgewise_lab.training.collect import Sample, collect_features
from edgewise_lab.training.fit import Data, Recipe, data_of, fit
from edgewise_lab.training.labels.base import kept_values
from edgewise_lab.training.labels.published import Value

FOLDS = 5
BUDGETS = (0.03, 0.05, 0.10)
"""Of the tokens, those that are consulted."""

Mask = NDArray[np.bool_]


def drawn(name: str) -> float:
    """From 0 to 1, the same everywhere."""
    return int.from_bytes(sha256(name.encode()).digest()[:8]) / 2**64


def scores(data: Data, tensors: dict[str, NDArray[np.floating]]) -> Floats:
    """float32[n]: the logits of a perceptron of one hidden layer."""
    x = (data.inputs - tensors["mean"]) / tensors["std"]
    hidden = np.maximum(x @ tensors["layers.0.weight"].T + tensors["layers.0.bias"], 0)
    return (hidden @ tensors["layers.1.weight"].T + tensors["layers.1.bias"])[:, 0]


def rows(data: Data, mask: Mask) -> Data:
    """Some of the tokens."""
    return Data(data.inputs[mask], data.labels[mask], data.groups[mask], data.proposed[mask])


def cross_fitted(data: Data, folds: NDArray[np.int64], learnt: Mask) -> Floats:
    """Scores of every token by a router that saw none of its row."""
    found = np.zeros(len(data.labels), np.float32)
    for fold in range(FOLDS):
        apart = folds == fold
        fitted = fit(rows(data, ~apart & learnt), Recipe())
        found[apart] = scores(rows(data, apart), fitted.tensors)
    return found


def recalls(labels: Floats, score: Floats, among: Mask) -> list[str]:
    """Of the tokens worth a consult, those among the highest scores, at each budget."""
    places = np.flatnonzero(among)
    ranked = places[np.argsort(-score[places], kind="stable")]
    worth = labels[places].sum()
    return [f"{labels[ranked[: int(b * len(ranked))]].sum() / worth:.0%}" for b in BUDGETS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/real_weights"))
    parser.add_argument("--label", choices=LABELS, default="both")
    given = parser.parse_args()
    folder = given.work / f"data-{given.label}"
    label = Value() if given.label == "value" else ValueOrWalk()
    samples = read(folder / ANSWERS, Sample)
    (edge_file,) = given.work.glob("edge-without-*.gguf")
    with closing(LlamaModel(edge_file, context=CONTEXT)) as edge:
        columns = collect_features(samples, "answer", edge, folder)
    data = data_of(
        columns,
        kept_values(label, folder),
        samples,
        inputs=("hidden", "top_logprobs", "scalars"),
        top_k=10,
        embeddings=None,
    )
    names = np.array(columns.questions)
    row = np.array([int(FOLDS * drawn(name.split(":")[-2])) for name in names])
    walked = np.array([name.startswith("walk:") for name in names])[data.groups]
    parts: dict[str, Callable[[], Mask]] = {
        "a quarter": lambda: np.array([drawn(name) < 0.25 for name in names])[data.groups],
        "half": lambda: np.array([drawn(name) < 0.5 for name in names])[data.groups],
        "all": lambda: np.ones(len(data.labels), np.bool_),
    }
    if walked.any():
        parts |= {"the cloud's answers": lambda: ~walked, "walks": lambda: walked}
    head = [f"{where}, {b:.0%}" for where in ("answers", "walks") for b in BUDGETS]
    print(*line(["learnt from", *head], head=True), sep="\n")
    judged = {"entropy": columns.inputs["scalars"][:, 0]}
    for name, part in parts.items():
        judged[name] = cross_fitted(data, row[data.groups], part())
    for name, score in judged.items():
        cells = [recalls(data.labels, score, among) for among in (~walked, walked) if among.any()]
        print(*line([name, *(cell for found in cells for cell in found)]), sep="\n", flush=True)
    print(
        f"\n{(~np.array([n.startswith('walk:') for n in names])).sum()} answers, "
        f"{data.labels[~walked].mean():.1%} of their tokens worth a consult"
        + (f"; walks: {data.labels[walked].mean():.1%}." if walked.any() else ".")
    )


if __name__ == "__main__":
    main()
