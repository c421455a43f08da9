"""How routers of a kind are fitted.

A kind that learns has `fit`, which is given what there is to learn from and gives back tensors, and
`load`, which makes a router of them (`routers/base.py`). The perceptron's fit needs torch and lies
here, so that routers know nothing of training.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Floats
from edgewise.errors import UsageError
from edgewise.registry import attribute
from edgewise.routers.named import ROUTERS, is_trained
from edgewise_lab.training.data import Data, Objective

_FITS: Mapping[str, str] = {"mlp": "edgewise_lab.training.fit:ready"}
"""Of the built-in kinds: what gives their fit, once it has what it needs."""


UPDATES = 16
"""Of the optimizer in an epoch, at least."""


class Recipe(msgspec.Struct, frozen=True):
    """`hidden` are the sizes of the layers between input and score; rates are AdamW's.

    `batch` is the most rows that an update takes; `batch_of` says how many it does.
    """

    hidden: tuple[int, ...] = (64,)
    epochs: int = 40
    batch: int = 4096
    rate: float = 2e-3
    weight_decay: float = 1e-2
    held_out: float = 0.1
    seed: int = 0
    objective: Objective = "cross-entropy"

    def batch_of(self, rows: int) -> int:
        """Rows of an update: of few rows fewer, so that however few an epoch has 16 updates."""
        return max(1, min(self.batch, rows // UPDATES))


class Fitted(msgspec.Struct, frozen=True):
    """`tensors` as the checkpoint holds them; losses in nats a token on the held-out texts.

    `baseline_loss` is that of the best constant score. `scores` and `labels` float32[m] are those
    of the held-out texts.
    """

    tensors: dict[str, NDArray[np.floating[Any]]]
    loss: float
    baseline_loss: float
    scores: Floats
    labels: Floats


class Fit(Protocol):
    """Fits a router; `done` is called after each epoch."""

    def __call__(self, data: Data, recipe: Recipe, done: Callable[[], None]) -> Fitted: ...


def fit_of(kind: str) -> Fit:
    """How routers of `kind` are fitted.

    Raises `UsageError` for a kind that is not trained, or whose fit needs what is not installed.
    """
    found = ROUTERS.load(kind)
    if kind in _FITS:
        return attribute(_FITS[kind])()
    fit = getattr(found, "fit", None)
    if fit is None or not is_trained(kind):
        raise UsageError(
            f"A router of the kind {kind!r} cannot be trained: it has no "
            f"{'fit' if fit is None else 'load'}",
            hint="only calibrate it, or name another kind",
            setting="kind",
        )
    return fit


def fitted(kind: str, data: Data, recipe: Recipe, done: Callable[[], None]) -> Fitted:
    """Fit a router, and check what came of it. Raises `UsageError`."""
    found = cast(object, fit_of(kind)(data, recipe, done))
    if not isinstance(found, Fitted):
        raise UsageError(
            f"The fit of {kind!r} gave a {type(found).__name__}, no Fitted",
            hint="repair its class",
        )
    if problem := _problem(found):
        raise UsageError(f"The fit of {kind!r} gave {problem}", hint="repair its class")
    return found


def _problem(found: Fitted) -> str | None:
    """What a checkpoint cannot be made of."""
    for name, given in found.tensors.items():
        tensor = cast(object, given)
        if not isinstance(tensor, np.ndarray) or not np.issubdtype(tensor.dtype, np.floating):
            return f"{name!r} that is no tensor of numbers"
        if not np.isfinite(tensor).all():
            return f"{name!r} with weights that are no numbers"
    scores, labels = np.asarray(found.scores), np.asarray(found.labels)
    if scores.ndim != 1 or scores.shape != labels.shape or not len(scores):
        return "scores and labels that do not go together"
    if not (math.isfinite(found.loss) and math.isfinite(found.baseline_loss)):
        return "losses that are no numbers"
    if not all(((values >= 0) & (values <= 1)).all() for values in (scores, labels)):
        return "scores or labels that are not from 0 to 1"
    return None
