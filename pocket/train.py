"""Train one model: Muon for the matrices, AdamW for the rest."""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tqdm import tqdm

from pocket.model import Llama, Shape, cross_entropy


@dataclass(frozen=True)
class Recipe:
    """What one training run uses; `batch` in rows, the share of steps that warms up is fixed."""

    shape: Shape
    rows: int
    batch: int
    muon_rate: float = 0.02
    adam_rate: float = 3e-3


WARM_UP = 0.03
FINAL_RATE = 0.03
REPORT_EVERY = 50
SAVE_EVERY = 200


def _rate(done: float) -> float:
    """Factor on the learning rates at a fraction of the run: linear up, cosine down."""
    if done < WARM_UP:
        return done / WARM_UP
    turn = (done - WARM_UP) / (1 - WARM_UP)
    return FINAL_RATE + (1 - FINAL_RATE) * (1 + math.cos(math.pi * turn)) / 2


def _optimizers(model: Llama, recipe: Recipe) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    others = [model.token_embd.weight, *(p for p in model.parameters() if p.dim() == 1)]
    return [
        torch.optim.Muon(
            matrices,
            lr=recipe.muon_rate,
            weight_decay=0.01,
            adjust_lr_fn="original",
        ),
        torch.optim.AdamW(others, lr=recipe.adam_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


class Checkpoint:
    """Weights, optimizer state and the steps taken, in one safetensors file.

    `identity` names what is trained on what; a file of another identity is not resumed.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity

    def save(self, step: int, model: Llama, optimizers: list[torch.optim.Optimizer]) -> None:
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for n, optimizer in enumerate(optimizers):
            for i, state in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{n}.{i}.{key}": value for key, value in state.items()}
        partial = self.path.with_suffix(".partial")
        save_file(tensors, partial, {"identity": self.identity, "step": str(step)})
        partial.replace(self.path)

    def load(self, model: Llama, optimizers: list[torch.optim.Optimizer]) -> int:
        """Restore what was saved; returns the steps taken, 0 where there is nothing to resume."""
        if not self.path.exists():
            return 0
        with safe_open(self.path, "pt") as file:
            metadata = file.metadata()
            if metadata["identity"] != self.identity:
                print(f"{self.path} is of another run: starting anew", file=sys.stderr)
                return 0
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        model.load_state_dict(
            {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        )
        for n, optimizer in enumerate(optimizers):
            state: dict[int, dict[str, torch.Tensor]] = {}
            for name, tensor in tensors.items():
                if name.startswith(f"optimizer.{n}."):
                    _, _, i, key = name.split(".")
                    state.setdefault(int(i), {})[key] = tensor
            optimizer.load_state_dict(
                {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
            )
        return int(metadata["step"])


def _identity(recipe: Recipe, ids: np.ndarray, targets: np.ndarray, seed: int) -> str:
    digest = hashlib.sha256(repr((recipe, seed)).encode())
    for rows in (ids, targets):
        digest.update(np.ascontiguousarray(rows[: recipe.rows]))
    return digest.hexdigest()


def train(
    name: str,
    recipe: Recipe,
    ids: np.ndarray,
    targets: np.ndarray,
    *,
    seed: int,
    folder: Path,
    device: str = "cpu",
    compiled: bool = True,
    stop_after: int | None = None,
) -> Llama:
    """Train on the first `recipe.rows` rows, each seen once; resumes from `folder`.

    `device` is PyTorch's name; the weights begin alike on each.

    `stop_after` ends this call after so many steps in all, as an interruption would.
    """
    torch.manual_seed(seed)
    model = Llama(recipe.shape).to(device)
    forward, loss_of = model, cross_entropy
    if compiled:
        forward = torch.compile(model, dynamic=False)
        loss_of = torch.compile(cross_entropy, dynamic=True)
    optimizers = _optimizers(model, recipe)
    base = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    checkpoint = Checkpoint(folder / f"{name}.safetensors", _identity(recipe, ids, targets, seed))
    first = checkpoint.load(model, optimizers)
    steps = recipe.rows // recipe.batch
    progress = tqdm(range(first, min(steps, stop_after or steps)), name, steps, initial=first)
    for step in progress:
        for optimizer, rate in zip(optimizers, base, strict=True):
            optimizer.param_groups[0]["lr"] = rate * _rate((step + 1) / steps)
        rows = slice(step * recipe.batch, (step + 1) * recipe.batch)
        batch = [torch.from_numpy(a[rows].astype(np.int64)).to(device) for a in (ids, targets)]
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            kept = batch[1] >= 0
            hidden = forward(batch[0])[kept]
            loss = loss_of(hidden, model.token_embd.weight, batch[1][kept])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (step + 1) % REPORT_EVERY == 0:
            progress.set_postfix(loss=f"{loss.item():.3f}")
        if (step + 1) % SAVE_EVERY == 0 or step + 1 in (steps, stop_after):
            checkpoint.save(step + 1, model, optimizers)
    return model
