"""Training: packed rows of question and answer, loss on the answers, AdamW with a cosine."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import trange

from pocket.corpus import Question
from pocket.model import Llama, Shape
from pocket.tokenizer import ASSISTANT, END, USER

IGNORED = -100
_SAVE_EVERY = 200


@dataclass(frozen=True)
class Recipe:
    """How one model is trained; a step sees `rows * length` tokens."""

    steps: int
    rows: int
    length: int
    peak: float
    warmup: int = 100
    decay: float = 0.05


def encode(tokenizer: Tokenizer, question: Question) -> tuple[list[int], int]:
    """Ids of a whole exchange and how many of them are the prompt."""
    prompt = tokenizer.encode(f"{USER}{question.prompt}{END}{ASSISTANT}").ids
    return prompt + tokenizer.encode(f"{question.reference}{END}").ids, len(prompt)


def batches(
    tokenizer: Tokenizer, questions: Iterator[Question], recipe: Recipe
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, each int64[rows, length], packed end to end."""
    need = recipe.rows * recipe.length + 1
    ids: list[int] = []
    kept: list[int] = []
    while True:
        while len(ids) < need:
            exchange, prompt = encode(tokenizer, next(questions))
            ids += exchange
            kept += [0] * prompt + [1] * (len(exchange) - prompt)
        flat, mask = np.array(ids[:need]), np.array(kept[:need])
        targets = np.where(mask[1:], flat[1:], IGNORED)
        shape = (recipe.rows, recipe.length)
        yield (
            torch.from_numpy(flat[:-1].reshape(shape).copy()),
            torch.from_numpy(targets.reshape(shape).copy()),
        )
        ids, kept = ids[need - 1 :], kept[need - 1 :]


def _rate(step: int, recipe: Recipe) -> float:
    if step < recipe.warmup:
        return recipe.peak * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(recipe.steps - recipe.warmup, 1)
    return recipe.peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def train(
    shape: Shape, recipe: Recipe, data: Iterator[tuple[Tensor, Tensor]], checkpoint: Path
) -> Llama:
    """Train, resuming from `checkpoint` where it exists (the data are skipped up to there)."""
    model = Llama(shape)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak, betas=(0.9, 0.98))
    start = _resume(model, optimizer, checkpoint)
    for _ in range(start):
        next(data)
    bar = trange(start, recipe.steps, desc=checkpoint.stem, mininterval=5)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, recipe)
        ids, targets = next(data)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == recipe.steps:
            state = {"model": model.state_dict(), "adam": optimizer.state_dict(), "step": step + 1}
            torch.save(state, checkpoint)
    return model


def _resume(model: Llama, optimizer: torch.optim.Optimizer, checkpoint: Path) -> int:
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["adam"])
    return int(state["step"])
