"""Routers that do not look at the step: the baselines."""

import numpy as np

from edgewise.edge.base import Needs, Step


class Constant:
    """Always the same score: 0 is edge only, 1 is cloud only."""

    needs, top = Needs.NOTHING, 0

    def __init__(self, value: float) -> None:
        self._value = value

    def score(self, step: Step) -> float:
        return self._value


class Random:
    """Uniform scores from a seed, the position and the proposed id: a rewind repeats them."""

    needs, top = Needs.NOTHING, 0

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def score(self, step: Step) -> float:
        return float(np.random.default_rng([self._seed, step.position, step.proposed]).random())
