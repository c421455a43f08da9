"""A trained router: a small multilayer perceptron over features of the step, in numpy."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from edgewise.edge.base import Floats, Step
from edgewise.errors import UsageError
from edgewise.routers.card import WEIGHTS, RouterCard
from edgewise.routers.signals import needs_of, reader_of, top_of, width_of

TABLE = "token_table"
MAX_WEIGHTS = 1 << 30
"""Size limit of the weights in bytes, twice a table of 256,000 tokens by 1,024 outputs."""


class Mlp:
    """A perceptron: sigmoid(W_n relu(... relu(W_1 (x - mean) / std + b_1 + t)) + b_n).

    x are the inputs in the order of the router's model card. The checkpoint's tensors are float32:
    `mean` and `std` [inputs], `layers.I.weight` [out, in] and `layers.I.bias` [out]; the last layer
    has one output. t is 0, and the attribute `tokens` None, unless the embedding of the proposed
    token is also an input. Then t is this embedding's product with the first layer's weights,
    computed in advance: the token's row of the tensor `token_table`, float16 [tokens, first out].
    """

    def __init__(self, card: RouterCard, folder: Path) -> None:
        self._read = reader_of(card.inputs, card.top_k, card.reference)
        self.needs = needs_of(card.inputs)
        self.top = top_of(card.inputs, card.top_k)
        width = width_of(card.inputs, card.hidden_size, card.top_k)
        tensors = _load(folder / WEIGHTS)
        self._layers = _folded(tensors, width, folder)
        self._table = tensors.get(TABLE)
        self.tokens = None if self._table is None else len(self._table)
        looked_up = "token_embedding" in card.inputs
        fits = self._table is None or self._table.shape[1:] == self._layers[0].bias.shape
        if looked_up != (self._table is not None) or not fits:
            raise UsageError(
                f"The router in {str(folder)!r} and its card do not agree on the token's embedding."
            )

    @classmethod
    def load(cls, card: RouterCard, folder: Path) -> "Mlp":
        """Load the checkpoint in `folder`. Raises `UsageError` if its tensors do not fit `card`."""
        return cls(card, folder)

    def score(self, step: Step) -> float:
        """Return the perceptron's output, from 0 (keep the edge's token) to 1 (ask the cloud)."""
        x = self._read(step)
        last = len(self._layers) - 1
        for index, (weight, bias) in enumerate(self._layers):
            x = weight.dot(x)
            x += bias
            if index == 0 and self._table is not None:
                x += self._table[step.proposed]
            if index < last:
                np.maximum(x, 0.0, out=x)
        # The sigmoid, without an exponential that could overflow.
        return 0.5 * (1.0 + math.tanh(0.5 * float(x[0])))


class _Layer(NamedTuple):
    weight: Floats
    bias: Floats


def _load(path: Path) -> dict[str, NDArray[np.float32]]:
    # A pipe would never end.
    if path.exists() and (not path.is_file() or path.stat().st_size > MAX_WEIGHTS):
        raise UsageError(f"{str(path)!r} is not a file, or is larger than {MAX_WEIGHTS >> 20} MB.")
    try:
        return load_file(path)
    except (LookupError, OSError, TypeError, ValueError, SafetensorError) as error:
        raise UsageError(f"{str(path)!r} is not a readable router checkpoint ({error}).") from error


def _folded(tensors: dict[str, Floats], width: int, folder: Path) -> list[_Layer]:
    """Return the layers, with the normalisation of the inputs folded into the first."""
    try:
        count = sum(name.endswith(".weight") for name in tensors)
        layers = [
            _Layer(tensors[f"layers.{i}.weight"], tensors[f"layers.{i}.bias"]) for i in range(count)
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
        raise UsageError(f"The router in {str(folder)!r} holds weights that are not numbers.")
    weight, bias = layers[0]
    scaled = np.ascontiguousarray(weight / std, np.float32)
    return [_Layer(scaled, (bias - scaled @ mean).astype(np.float32)), *layers[1:]]
