"""Routers that need no training: the edge model's own uncertainty, and baselines."""

import math

import numpy as np

from edgewise.edge.base import Needs, Step


class MaxProb:
    """Scores 1 - p1, where p1 is the probability of the likeliest token."""

    needs, top = Needs.ENTROPY, 0

    def score(self, step: Step) -> float:
        return 1.0 - math.exp(step.logprob(step.proposed))


class Margin:
    """Scores 1 - (p1 - p2), where p1 and p2 are the probabilities of the two likeliest tokens."""

    needs, top = Needs.ENTROPY | Needs.TOP, 2

    def score(self, step: Step) -> float:
        # A server that is sure names one.
        first, second, *_ = [*(math.exp(c.logprob) for c in step.candidates(2)), 0.0]
        return 1.0 - (first - second)


class Entropy:
    """Scores H / log V: the entropy of the next token, as a fraction of its maximum over V ids."""

    needs, top = Needs.ENTROPY, 0

    def score(self, step: Step) -> float:
        # Rounding may leave the interval, beyond which a score is refused.
        return min(1.0, max(0.0, step.entropy / math.log(step.size)))


class Constant:
    """Always gives the same score: 1 reaches every threshold, 0 only a threshold of 0."""

    needs, top = Needs.NOTHING, 0

    def __init__(self, value: float) -> None:
        self._value = value

    def score(self, step: Step) -> float:
        return self._value


class Random:
    """Scores uniformly at random. A `seed` gives one score for each position and proposed id."""

    needs, top = Needs.NOTHING, 0

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def score(self, step: Step) -> float:
        return float(np.random.default_rng([self._seed, step.position, step.proposed]).random())
