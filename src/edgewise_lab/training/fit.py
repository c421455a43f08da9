"""Fits routers to labelled tokens; the fit of the built-in perceptron needs torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import EdgeModel, Floats, Ids
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError
from edgewise.registry import imported
from edgewise.routers.mlp import TABLE
from edgewise.routers.named import ROUTERS, is_trained
from edgewise.routers.signals import Reference, ranks_of, signals_of
from edgewise_lab.training.collect import Columns


class Data(msgspec.Struct, frozen=True):
    """Training data of a router, with a row for each of n tokens.

    `inputs` float32[n, width] are its inputs without embeddings; `labels` float32[n] are from 0 to
    1; `groups` int32[n] numbers the texts; `proposed` int32[n] is the edge's likeliest id. A router
    that reads the embedding of that id has `embeddings` float32[vocabulary, d].
    """

    inputs: Floats
    labels: Floats
    groups: Ids
    proposed: Ids
    embeddings: Floats | None = None


def data_of(
    columns: Columns,
    values: Mapping[str, Sequence[float]],
    *,
    inputs: Sequence[str],
    top_k: int,
    embeddings: Floats | None,
    reference: Reference = (),
) -> Data:
    """Return the training data: the columns of the named `inputs`, and a label for each row.

    A row is a token of a text. `values` maps each of `columns.questions` to the labels (0 to 1) of
    its text's tokens. Of the input `top_logprobs` the first `top_k` columns are kept; `ranks` needs
    `reference`, `token_embedding` needs `embeddings`. Raises `UsageError` where all labels are 0 or
    all are 1, or where they are not as many as the rows.
    """
    labels = np.concatenate([values[name] for name in columns.questions]).astype(np.float32)
    if len(labels) != len(columns.written):
        raise UsageError("The labels do not match the texts", hint="remove the folder's data")
    if not 0 < float(labels.mean()) < 1:
        which = "no" if labels.mean() == 0 else "every"
        raise UsageError(
            f"There is nothing to learn: a consult is useful at {which} token of the "
            f"{len(columns.questions)} texts",
            hint="give more questions, or another pair or label",
        )
    parts: list[Floats] = []
    for signal in signals_of(inputs):
        if signal.read:
            rows = columns.inputs[signal.name][:, : top_k if signal.width == "k" else None]
            parts.append(ranks_of(rows, reference) if signal.ranked else rows)
    return Data(
        np.concatenate(parts, axis=1) if parts else np.empty((len(labels), 0), np.float32),
        labels,
        columns.sample,
        columns.proposed,
        embeddings if "token_embedding" in inputs else None,
    )


def held_out(data: Data, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return bool[n], true for the rows of a random `fraction` of the texts, to check a fit on.

    Raises `UsageError` where no text, or no positive label, is left to learn from.
    """
    texts = np.unique(data.groups)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(texts, max(1, int(fraction * len(texts))), replace=False)
    mask = np.isin(data.groups, chosen)
    if mask.all() or not data.labels[~mask].any():
        raise UsageError("There are too few answers to learn from", hint="give more questions")
    return mask


class Recipe(msgspec.Struct, frozen=True):
    """Hyperparameters of a fit; `rate` (of learning) and `weight_decay` are AdamW's.

    `hidden`: widths of layers; `batch`: in tokens; `held_out`: fraction of texts to check the fit.
    """

    hidden: tuple[int, ...] = (64,)
    epochs: int = 40
    batch: int = 4096
    rate: float = 2e-3
    weight_decay: float = 1e-2
    held_out: float = 0.1
    seed: int = 0


class Fitted(msgspec.Struct, frozen=True):
    """A router's weights, and how good they are on the texts held out from the fit.

    `loss` is in nats a token, `baseline_loss` that of the best constant score. `scores` and
    `labels` float32[m] are those of the held-out tokens.
    """

    tensors: dict[str, NDArray[np.floating[Any]]]
    loss: float
    baseline_loss: float
    scores: Floats
    labels: Floats


Fit = Callable[[Data, Recipe, Callable[[], None]], Fitted]
"""Fits a router; the callback is for the end of each epoch."""


def fit_of(kind: str) -> Fit:
    """Return the function that fits routers of `kind`; `UsageError` if none, or without torch."""
    found = ROUTERS.load(kind)
    if kind == "mlp":
        imported("lab", "torch")
        return fit
    own = getattr(found, "fit", None)
    if own is None or not is_trained(kind):
        raise UsageError(
            f"A router of the kind {kind!r} cannot be trained: it has no "
            f"{'fit' if own is None else 'load'}",
            hint="only calibrate it, or name another kind",
            setting="kind",
        )
    return own


def fitted(kind: str, data: Data, recipe: Recipe, done: Callable[[], None]) -> Fitted:
    """Fit a router of `kind`. Raises `UsageError` as `fit_of` does, and for an invalid result."""
    found = cast(object, fit_of(kind)(data, recipe, done))
    if not isinstance(found, Fitted):
        raise UsageError(
            f"The fit of {kind!r} gave a {type(found).__name__}, no Fitted", hint="repair its class"
        )
    if problem := _problem(found):
        raise UsageError(f"The fit of {kind!r} gave {problem}", hint="repair its class")
    return found


def _problem(found: Fitted) -> str | None:
    for name, given in found.tensors.items():
        tensor = cast(object, given)
        if not isinstance(tensor, np.ndarray) or not np.issubdtype(tensor.dtype, np.floating):
            return f"{name!r} that is not a tensor of numbers"
        if not np.isfinite(tensor).all():
            return f"{name!r} with weights that are not numbers"
    scores, labels = np.asarray(found.scores), np.asarray(found.labels)
    if scores.ndim != 1 or scores.shape != labels.shape or not len(scores):
        return "scores and labels that do not go together"
    if not (math.isfinite(found.loss) and math.isfinite(found.baseline_loss)):
        return "losses that are not numbers"
    if not all(((values >= 0) & (values <= 1)).all() for values in (scores, labels)):
        return "scores or labels that are not from 0 to 1"
    return None


def fit(data: Data, recipe: Recipe, done: Callable[[], None] = lambda: None) -> Fitted:
    """Fit the perceptron to the labels by cross-entropy; at first it is a constant, the mean label.

    Its weights are those after the epoch with the least held-out loss; `done` is called after each.
    Raises `UsageError` without torch, with too few texts, or where the loss diverges.
    """
    (torch,) = imported("lab", "torch")
    torch.manual_seed(recipe.seed)
    apart = held_out(data, recipe.held_out, recipe.seed)
    network = _Network(torch, data, ~apart, recipe)
    labels = torch.from_numpy(data.labels)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits
    kept = torch.from_numpy(np.flatnonzero(~apart))
    checked = torch.from_numpy(np.flatnonzero(apart))
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay
    )
    batch = max(1, min(recipe.batch, len(kept) // 16))  # 16 updates an epoch or more
    batches = -(-len(kept) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, batches * recipe.epochs)
    best, scores = float("inf"), np.empty(0, np.float32)
    tensors: dict[str, NDArray[np.floating[Any]]] = {}
    for _ in range(recipe.epochs):
        for rows in kept[torch.randperm(len(kept))].split(batch):
            optimizer.zero_grad()
            entropy(network(rows), labels[rows]).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            logit = network(checked)
            loss = float(entropy(logit, labels[checked]))
        if loss < best:
            best, tensors, scores = loss, network.tensors(), torch.sigmoid(logit).numpy()
        done()
    with torch.no_grad():
        constant = torch.linspace(-12, 12, 241)
        baseline = min(float(entropy(c.expand(len(checked)), labels[checked])) for c in constant)
    if not tensors:
        raise UsageError(
            "The fit diverged: its loss is not a number", hint="check the questions' answers"
        )
    return Fitted(tensors, best, baseline, scores, data.labels[apart])


class _Network:
    """The perceptron, called with row indices; inputs are normalised, an embedding is last."""

    def __init__(self, torch: Any, data: Data, kept: NDArray[np.bool_], recipe: Recipe) -> None:
        self._torch = torch
        self._mean = data.inputs[kept].mean(axis=0)
        self._std = data.inputs[kept].std(axis=0) + 1e-6
        self._width = data.inputs.shape[1]
        x = (data.inputs - self._mean) / self._std
        self._table = None
        if data.embeddings is not None:
            seen = data.embeddings[np.unique(data.proposed[kept])]
            self._table = (data.embeddings - seen.mean(axis=0)) / (seen.std(axis=0) + 1e-6)
            x = np.concatenate([x, self._table[data.proposed]], axis=1)
        self._x = torch.from_numpy(np.ascontiguousarray(x, np.float32))
        sizes = (x.shape[1], *recipe.hidden, 1)
        self._layers = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
        rate = float(np.clip(data.labels[kept].mean(), 1e-4, 1 - 1e-4))
        torch.nn.init.zeros_(self._layers[-1].weight)
        torch.nn.init.constant_(self._layers[-1].bias, math.log(rate / (1 - rate)))

    def parameters(self) -> list[Any]:
        return [p for layer in self._layers for p in layer.parameters()]

    def __call__(self, rows: Any) -> Any:
        first, *others = self._layers
        x = first(self._x[rows])
        for layer in others:
            x = layer(self._torch.relu(x))
        return x.squeeze(1)

    def tensors(self) -> dict[str, NDArray[np.floating[Any]]]:
        found = {"mean": self._mean.astype(np.float32), "std": self._std.astype(np.float32)}
        for i, layer in enumerate(self._layers):
            for name in ("weight", "bias"):
                found[f"layers.{i}.{name}"] = getattr(layer, name).detach().numpy().copy()
        if self._table is not None:
            dense, embedded = np.split(found["layers.0.weight"], [self._width], axis=1)
            found["layers.0.weight"] = np.ascontiguousarray(dense)
            found[TABLE] = (self._table @ embedded.T).astype(np.float16)
        return found


def embeddings_of(edge: EdgeModel) -> Floats:
    """Return a GGUF's input embeddings, float32[vocabulary, d]; `UsageError` for other models."""
    (gguf,) = imported("lab", "gguf")
    if isinstance(edge, LlamaModel):
        for tensor in gguf.GGUFReader(edge.path).tensors:
            if tensor.name == "token_embd.weight":
                return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
    raise UsageError(
        f"{edge.name!r} has no input embeddings in a GGUF file",
        hint="leave the input token_embedding out",
        setting="inputs",
    )
