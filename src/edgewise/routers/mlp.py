"""A trained router: a small perceptron over the step's features, in numpy."""

import math
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from edgewise.edge.base import Floats, Needs, Step
from edgewise.errors import UsageError
from edgewise.routers.card import WEIGHTS, RouterCard

SCALARS = 3
"""Number of scalar features: entropy in nats, max-prob, margin."""

_NEEDS = {
    "hidden": Needs.HIDDEN,
    "top_logprobs": Needs.ENTROPY | Needs.TOP,
    "scalars": Needs.ENTROPY | Needs.TOP,
}


class Mlp:
    """sigmoid(W_n relu(... relu(W_1 (x - mean) / std + b_1)) + b_n).

    Tensors of the checkpoint, float32: `mean` and `std` [inputs], `layers.I.weight` [out, in] and
    `layers.I.bias` [out]; the last layer has one output. Inputs stand in the card's order.
    """

    def __init__(self, card: RouterCard, folder: Path) -> None:
        self._inputs = card.inputs
        self._top_k = card.top_k
        self.needs = Needs.NOTHING
        for name in card.inputs:
            self.needs |= _NEEDS[name]
        self.top = max(card.top_k, 2) if Needs.TOP in self.needs else 0
        self._layers = _folded(_load(folder / WEIGHTS), _width(card), folder)

    def score(self, step: Step) -> float:
        """The probability that the cloud should write this token."""
        x = self._features(step)
        for weight, bias in self._layers[:-1]:
            x = np.maximum(weight @ x + bias, 0.0)
        weight, bias = self._layers[-1]
        return 0.5 * (1.0 + math.tanh(0.5 * float((weight @ x + bias)[0])))

    def _features(self, step: Step) -> Floats:
        parts = [self._feature(name, step) for name in self._inputs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _feature(self, name: str, step: Step) -> Floats:
        if name == "hidden":
            return step.hidden
        if name == "top_logprobs":
            return np.array([c.logprob for c in step.candidates(self._top_k)], np.float32)
        first, second = (math.exp(c.logprob) for c in step.candidates(2))
        return np.array([step.entropy, first, first - second], np.float32)


def _width(card: RouterCard) -> int:
    sizes = {"hidden": card.hidden_size, "top_logprobs": card.top_k, "scalars": SCALARS}
    return sum(sizes[name] for name in card.inputs)


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
