"""Fit the perceptron router. Needs torch, which only training does."""

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from edgewise.errors import UsageError
from edgewise.routers.card import CONFIG, WEIGHTS, RouterCard
from edgewise.training.collect import Data


class Recipe(msgspec.Struct, frozen=True):
    """`hidden` are the sizes of the layers between input and score; rates are AdamW's."""

    hidden: tuple[int, ...] = (64,)
    epochs: int = 40
    batch: int = 4096
    rate: float = 2e-3
    weight_decay: float = 1e-2
    held_out: float = 0.1
    seed: int = 0


class Fitted(msgspec.Struct, frozen=True):
    """`tensors` as the checkpoint holds them; `loss` in nats on the held-out answers."""

    tensors: dict[str, NDArray[np.float32]]
    loss: float
    baseline_loss: float


def fit(data: Data, recipe: Recipe) -> Fitted:
    """Minimise cross-entropy; the epoch that is best on held-out answers is kept.

    `baseline_loss` is that of the labels' mean, which knows nothing of the step.
    """
    torch = _torch()
    torch.manual_seed(recipe.seed)
    held_out = _held_out(data, recipe)
    mean = data.inputs[~held_out].mean(axis=0)
    std = data.inputs[~held_out].std(axis=0) + 1e-6
    x = torch.from_numpy((data.inputs - mean) / std)
    y = torch.from_numpy(data.labels)
    sizes = (data.inputs.shape[1], *recipe.hidden, 1)
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())))
    model = model[:-1]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay
    )
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits
    kept = torch.from_numpy(np.flatnonzero(~held_out))
    checked = torch.from_numpy(np.flatnonzero(held_out))
    steps = max(1, len(kept) // recipe.batch) * recipe.epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, weights = float("inf"), {}
    for _ in range(recipe.epochs):
        for rows in kept[torch.randperm(len(kept))].split(recipe.batch):
            optimizer.zero_grad()
            loss_of(model(x[rows]).squeeze(1), y[rows]).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            loss = float(loss_of(model(x[checked]).squeeze(1), y[checked]))
        if loss < best:
            best, weights = loss, _weights(layers)
    share = float(data.labels[~held_out].mean())
    seen = data.labels[held_out]
    baseline = -float(np.mean(seen * np.log(share) + (1 - seen) * np.log(1 - share)))
    tensors = {"mean": mean.astype(np.float32), "std": std.astype(np.float32), **weights}
    return Fitted(tensors, best, baseline)


def save(folder: Path, card: RouterCard, fitted: Fitted) -> None:
    """Write the checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(fitted.tensors, folder / WEIGHTS)
    (folder / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")


def _held_out(data: Data, recipe: Recipe) -> NDArray[np.bool_]:
    """Whole answers, since the tokens of one are alike."""
    answers = np.unique(data.groups)
    rng = np.random.default_rng(recipe.seed)
    chosen = rng.choice(answers, max(1, int(recipe.held_out * len(answers))), replace=False)
    mask = np.isin(data.groups, chosen)
    if mask.all() or not data.labels[~mask].any():
        raise UsageError("There are too few answers to learn from; give more questions.")
    return mask


def _weights(layers: list[Any]) -> dict[str, NDArray[np.float32]]:
    return {
        f"layers.{i}.{name}": getattr(layer, name).detach().numpy().copy()
        for i, layer in enumerate(layers)
        for name in ("weight", "bias")
    }


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise UsageError("Training needs torch: pip install 'edgewise[train]'.") from error
