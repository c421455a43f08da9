"""A trained router: a small perceptron over the step's features, in numpy."""

import math
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from edgewise.edge.base import Floats, Step
from edgewise.errors import UsageError
from edgewise.routers.card import WEIGHTS, RouterCard
from edgewise.routers.features import features, needs_of, top_of, width_of


class Mlp:
    """sigmoid(W_n relu(... relu(W_1 (x - mean) / std + b_1)) + b_n).

    Tensors of the checkpoint, float32: `mean` and `std` [inputs], `layers.I.weight` [out, in] and
    `layers.I.bias` [out]; the last layer has one output. Inputs stand in the card's order.
    """

    def __init__(self, card: RouterCard, folder: Path) -> None:
        self._inputs = card.inputs
        self._top_k = card.top_k
        self.needs = needs_of(card.inputs)
        self.top = top_of(card.inputs, card.top_k)
        width = width_of(card.inputs, card.hidden_size, card.top_k)
        self._layers = _folded(_load(folder / WEIGHTS), width, folder)

    def score(self, step: Step) -> float:
        """The probability that the cloud should write this token."""
        x = features(step, self._inputs, self._top_k)
        for weight, bias in self._layers[:-1]:
            x = np.maximum(weight @ x + bias, 0.0)
        weight, bias = self._layers[-1]
        return 0.5 * (1.0 + math.tanh(0.5 * float((weight @ x + bias)[0])))


def _load(path: Path) -> dict[str, Floats]:
    try:
        return load_file(path)
    except (OSError, TypeError, SafetensorError) as error:
        raise UsageError(f"{str(path)!r} is no readable router checkpoint ({error}).") from error


def _folded(tensors: dict[str, Floats], width: int, folder: Path) -> list[tuple[Floats, Floats]]:
    """Layers as (weight, bias), the normalisation of the inputs folded into the first."""
    try:
        count = sum(name.endswith(".weight") for name in tensors)
        layers = [
            (tensors[f"layers.{i}.weight"], tensors[f"layers.{i}.bias"]) for i in range(count)
        ]
        mean, std = tensors["mean"], tensors["std"]
    except KeyError as error:
        raise UsageError(f"The router in {str(folder)!r} lacks the tensor {error}.") from error
    sizes = [width, *(bias.size for _, bias in layers)]
    fits = all(
        w.shape == (b, a) and bias.shape == (b,)
        for (w, bias), a, b in zip(layers, sizes, sizes[1:], strict=False)
    )
    if not layers or not fits or sizes[-1] != 1 or mean.shape != (width,) or std.shape != (width,):
        raise UsageError(f"The router in {str(folder)!r} does not have {width} inputs, one output.")
    if not all(np.isfinite(tensor).all() for tensor in tensors.values()) or not std.all():
        raise UsageError(f"The router in {str(folder)!r} holds weights that are no numbers.")
    weight, bias = layers[0]
    scaled = np.ascontiguousarray(weight / std, np.float32)
    return [(scaled, (bias - scaled @ mean).astype(np.float32)), *layers[1:]]
