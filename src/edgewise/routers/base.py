"""The contract of a router: a pure function from a `Step` to a score.

A `Step` is the edge model's prediction for the next token. A class of routers is called a *kind*.
An untrained kind is made without arguments, and needs only what `Router` lists; a trained one also
has `load`, and `fit` (`edgewise_lab/training/fit.py`). A router in ten lines:

    class Surprise:
        needs, top = Needs.ENTROPY, 0

        def score(self, step: Step) -> float:
            return 1.0 - math.exp(step.logprob(step.proposed))
"""

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgewise.edge.base import Needs, Step
from edgewise.errors import UsageError
from edgewise.routers.card import RouterCard


class Router(Protocol):
    """Scores how much the next token needs the cloud. A router has no threshold and does no I/O."""

    @property
    def needs(self) -> Needs:
        """The parts of a `Step` that `score` reads. They stay readable after the next decode."""
        ...

    @property
    def top(self) -> int:
        """How many of the likeliest token ids of a `Step` the method `score` reads."""
        ...

    def score(self, step: Step) -> float:
        """Return a score from 0 (keep the edge's token) to 1 (ask the cloud)."""
        ...


def checked_score(router: Router, step: Step) -> float:
    """Return the router's score of a `Step`. Raises `UsageError` unless it is from 0 to 1."""
    # Routers are third-party code: text, None and arrays come as well as numbers.
    score: Any = router.score(step)
    if isinstance(score, float | int | np.floating) and 0.0 <= float(score) <= 1.0:
        return float(score)
    raise UsageError(
        f"The router {type(router).__name__!r} gave the score {score!r}, which is not a number "
        "from 0 to 1",
        hint="mend its score()",
        setting="router",
    )


class Trained(Router, Protocol):
    """A class of routers with trained weights. Their inputs are features of a `Step` (`Signal`)."""

    @classmethod
    def load(cls, card: RouterCard, folder: Path) -> Router:
        """Load the checkpoint in `folder`. Raises `UsageError` if its tensors do not fit `card`."""
        ...
