"""Writes a router's checkpoint: weights, and `config.json`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from edgewise.edge.base import Floats
from edgewise.registry import imported
from edgewise.routers.card import CONFIG, WEIGHTS, RouterCard
from edgewise_lab.evaluation.tasks.base import TRAINED_ON, digest


def isotonic(scores: Floats, labels: Floats) -> tuple[tuple[float, float], ...]:
    """Return the knots (score, probability) of the isotonic regression of labels on scores."""
    (optimize,) = imported("lab", "scipy.optimize")
    order = np.argsort(scores, kind="stable")
    fitted = optimize.isotonic_regression(labels[order].astype(np.float64))
    starts, ends = fitted.blocks[:-1], fitted.blocks[1:] - 1
    return tuple(
        (float(scores[order[at]]), min(1.0, max(0.0, float(fitted.x[at]))))
        for at in sorted({*starts.tolist(), *ends.tolist()})
    )


def save_weights(
    folder: Path, tensors: Mapping[str, NDArray[np.floating[Any]]], prompts: Sequence[str]
) -> None:
    """Write the weights, and hashes of the `prompts` they were fitted to; delete `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    # A card never describes other weights.
    (folder / CONFIG).unlink(missing_ok=True)
    save_file(dict(tensors), folder / WEIGHTS)
    lines = sorted({digest(prompt) for prompt in prompts})
    (folder / TRAINED_ON).write_text("\n".join(lines) + "\n", encoding="ascii")


def save_card(folder: Path, card: RouterCard) -> None:
    """Write the card to the folder's `config.json`, which is replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    described = msgspec.json.format(msgspec.json.encode(card), indent=2)
    partial = folder / f"{CONFIG}.partial"
    partial.write_bytes(described + b"\n")
    partial.replace(folder / CONFIG)
