"""Train one model of the pair on the CPU: Muon for the matrices, AdamW for the rest."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch

from pocket.model import Llama, Shape


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


def _report(name: str, step: int, steps: int, loss: float, began: float, tokens: int) -> None:
    elapsed = time.monotonic() - began
    speed = tokens / elapsed
    line = f"{name} {step}/{steps} loss {loss:.4f} {elapsed:.0f}s {speed:.0f} tokens/s"
    print(line, file=sys.stderr, flush=True)


def train(name: str, recipe: Recipe, ids: np.ndarray, targets: np.ndarray, *, seed: int) -> Llama:
    """Train on the first `recipe.rows` rows, each seen once."""
    torch.manual_seed(seed)
    model = Llama(recipe.shape)
    compiled = torch.compile(model, dynamic=False)
    optimizers = _optimizers(model, recipe)
    base = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    steps, began = recipe.rows // recipe.batch, time.monotonic()
    for step in range(steps):
        for optimizer, rate in zip(optimizers, base, strict=True):
            optimizer.param_groups[0]["lr"] = rate * _rate((step + 1) / steps)
        rows = slice(step * recipe.batch, (step + 1) * recipe.batch)
        batch = [torch.from_numpy(a[rows].astype(np.int64)) for a in (ids, targets)]
        with torch.autocast("cpu", torch.bfloat16):
            hidden = compiled(batch[0])
            loss = model.head_loss(hidden, batch[1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (step + 1) % REPORT_EVERY == 0:
            _report(name, step + 1, steps, loss.item(), began, (step + 1) * batch[0].numel())
    return model
