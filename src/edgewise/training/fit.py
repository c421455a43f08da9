"""Fit the perceptron router. Needs torch, which only training does."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Floats, Ids
from edgewise.errors import UsageError
from edgewise.routers.card import Input
from edgewise.routers.mlp import TABLE
from edgewise.training.collect import KEPT, Columns, Sample

Objective = Literal["cross-entropy", "marginal-likelihood"]

_POSITIVE_WEIGHT = 8.0
_WARM_EPOCHS = 5


class Data(msgspec.Struct, frozen=True):
    """What is learnt from, a row a token.

    `inputs` float32[n, width] (without the embedding), `labels` float32[n], `groups` int32[n]:
    which answer; `proposed` int32[n] with `embeddings` float32[vocabulary, d] where the token's
    embedding is an input; `edge_logprob` and `cloud_logprob` float32[n] of the token written, for
    the marginal likelihood.
    """

    inputs: Floats
    labels: Floats
    groups: Ids
    proposed: Ids
    embeddings: Floats | None = None
    edge_logprob: Floats | None = None
    cloud_logprob: Floats | None = None


class Recipe(msgspec.Struct, frozen=True):
    """`hidden` are the sizes of the layers between input and score; rates are AdamW's."""

    hidden: tuple[int, ...] = (64,)
    epochs: int = 40
    batch: int = 4096
    rate: float = 2e-3
    weight_decay: float = 1e-2
    held_out: float = 0.1
    seed: int = 0
    objective: Objective = "cross-entropy"


class Fitted(msgspec.Struct, frozen=True):
    """`tensors` as the checkpoint holds them; losses in nats a token on the held-out answers.

    `scores` and `labels` are those of the held-out answers.
    """

    tensors: dict[str, NDArray[np.floating[Any]]]
    loss: float
    baseline_loss: float
    scores: Floats
    labels: Floats


def data_of(
    columns: Columns,
    values: Mapping[str, Sequence[float]],
    answers: Sequence[Sample],
    *,
    inputs: Sequence[Input],
    top_k: int,
    embeddings: Floats | None,
) -> Data:
    """Rows of the inputs asked for, with their labels. Raises `UsageError` without two classes."""
    if top_k > KEPT:
        raise UsageError(f"--top-k must be at most {KEPT}, not {top_k}.")
    labels = np.concatenate([values[name] for name in columns.questions]).astype(np.float32)
    if len(labels) != len(columns.written):
        raise UsageError("The labels belong to other answers; remove the folder's data and retry.")
    if not 0 < float(labels.mean()) < 1:
        which = "no" if labels.mean() == 0 else "every"
        raise UsageError(
            f"There is nothing to learn: a consult is worth it at {which} token of the "
            f"{len(columns.questions)} answers; give more questions, or another pair or label."
        )
    parts = [
        columns.inputs[name][:, :top_k] if name == "top_logprobs" else columns.inputs[name]
        for name in inputs
        if name != "token_embedding"
    ]
    logprobs = {answer.question: answer.logprobs for answer in answers}
    cloud = [logprobs[name] for name in columns.questions]
    known = all(cloud)
    return Data(
        np.concatenate(parts, axis=1) if parts else np.empty((len(labels), 0), np.float32),
        labels,
        columns.answer,
        columns.proposed,
        embeddings if "token_embedding" in inputs else None,
        columns.edge_logprob,
        np.concatenate(cloud).astype(np.float32) if known else None,
    )


def fit(data: Data, recipe: Recipe, done: Callable[[], None] = lambda: None) -> Fitted:
    """Minimise the objective; the epoch that is best on held-out answers is kept.

    Cross-entropy: against the labels. `marginal-likelihood`: Co-LLM's, equation 3 of arXiv
    2403.03870, -log((1 - p) P_edge(y) + p P_cloud(y)) with p the score, begun with some epochs of
    cross-entropy in which positive labels weigh eight times. `baseline_loss` is that of the best
    constant score, which knows nothing of the step. `done` is called after each epoch.
    """
    torch = import_torch()
    torch.manual_seed(recipe.seed)
    held_out = _held_out(data, recipe)
    network = _Network(torch, data, ~held_out, recipe)
    loss_of = _objective(torch, data, recipe)
    kept = torch.from_numpy(np.flatnonzero(~held_out))
    checked = torch.from_numpy(np.flatnonzero(held_out))
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay
    )
    warm = _WARM_EPOCHS if recipe.objective == "marginal-likelihood" else 0
    batches = -(-len(kept) // recipe.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, batches * (recipe.epochs + warm)
    )
    best, scores = float("inf"), np.empty(0, np.float32)
    tensors: dict[str, NDArray[np.floating[Any]]] = {}
    for epoch in range(-warm, recipe.epochs):
        for rows in kept[torch.randperm(len(kept))].split(recipe.batch):
            optimizer.zero_grad()
            logit = network(rows)
            (_warm_loss(torch, data, logit, rows) if epoch < 0 else loss_of(logit, rows)).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            logit = network(checked)
            loss = float(loss_of(logit, checked))
        if epoch >= 0 and loss < best:
            best, tensors, scores = loss, network.tensors(), torch.sigmoid(logit).numpy()
        done()
    with torch.no_grad():
        constant = torch.linspace(-12, 12, 241)
        baseline = min(float(loss_of(c.expand(len(checked)), checked)) for c in constant)
    if not tensors:
        raise UsageError("The fit diverged: its loss is no number; check the questions' answers.")
    return Fitted(tensors, best, baseline, scores, data.labels[held_out])


class _Network:
    """The perceptron over normalised inputs, the token's embedding last."""

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

    def parameters(self) -> list[Any]:
        return [p for layer in self._layers for p in layer.parameters()]

    def __call__(self, rows: Any) -> Any:
        first, *others = self._layers
        x = first(self._x[rows])
        for layer in others:
            x = layer(self._torch.relu(x))
        return x.squeeze(1)

    def tensors(self) -> dict[str, NDArray[np.floating[Any]]]:
        """As the checkpoint holds them; what the embedding adds is folded into a table."""
        found = {"mean": self._mean.astype(np.float32), "std": self._std.astype(np.float32)}
        for i, layer in enumerate(self._layers):
            for name in ("weight", "bias"):
                found[f"layers.{i}.{name}"] = getattr(layer, name).detach().numpy().copy()
        if self._table is not None:
            dense, embedded = np.split(found["layers.0.weight"], [self._width], axis=1)
            found["layers.0.weight"] = np.ascontiguousarray(dense)
            found[TABLE] = (self._table @ embedded.T).astype(np.float16)
        return found


def _objective(torch: Any, data: Data, recipe: Recipe) -> Callable[[Any, Any], Any]:
    """From logits and rows to the loss."""
    if recipe.objective == "cross-entropy":
        labels = torch.from_numpy(data.labels)
        entropy = torch.nn.functional.binary_cross_entropy_with_logits
        return lambda logit, rows: entropy(logit, labels[rows])
    if data.edge_logprob is None or data.cloud_logprob is None:
        raise UsageError("The label co-llm needs logprobs of the cloud's answers; collect them.")
    edge = torch.from_numpy(data.edge_logprob)
    cloud = torch.from_numpy(data.cloud_logprob)
    log_sigmoid = torch.nn.functional.logsigmoid

    def marginal(logit: Any, rows: Any) -> Any:
        either = torch.logaddexp(log_sigmoid(-logit) + edge[rows], log_sigmoid(logit) + cloud[rows])
        return -either.mean()

    return marginal


def _warm_loss(torch: Any, data: Data, logit: Any, rows: Any) -> Any:
    return torch.nn.functional.binary_cross_entropy_with_logits(
        logit,
        torch.from_numpy(data.labels)[rows],
        pos_weight=torch.tensor(_POSITIVE_WEIGHT),
    )


def _held_out(data: Data, recipe: Recipe) -> NDArray[np.bool_]:
    """Whole answers, since the tokens of one are alike."""
    answers = np.unique(data.groups)
    rng = np.random.default_rng(recipe.seed)
    chosen = rng.choice(answers, max(1, int(recipe.held_out * len(answers))), replace=False)
    mask = np.isin(data.groups, chosen)
    if mask.all() or not data.labels[~mask].any():
        raise UsageError("There are too few answers to learn from; give more questions.")
    return mask


def import_torch() -> Any:
    """Torch, or a `UsageError` that says how to get it."""
    try:
        return import_module("torch")
    except ImportError as error:
        raise UsageError("Training needs torch: pip install 'edgewise[train]'.") from error
