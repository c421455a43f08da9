"""Routers that need no training: the edge model's own uncertainty."""

import math

from edgewise.edge.base import Needs, Step


class MaxProb:
    """1 - p1: the probability that the likeliest token is not the one."""

    needs, top = Needs.ENTROPY, 0

    def score(self, step: Step) -> float:
        return 1.0 - math.exp(step.logprob(step.proposed))


class Margin:
    """1 - (p1 - p2): how close the second likeliest token is."""

    needs, top = Needs.ENTROPY | Needs.TOP, 2

    def score(self, step: Step) -> float:
        first, second = (math.exp(c.logprob) for c in step.candidates(2))
        return 1.0 - (first - second)


class Entropy:
    """H / log V: Shannon entropy over its greatest value."""

    needs, top = Needs.ENTROPY, 0

    def score(self, step: Step) -> float:
        return min(1.0, max(0.0, step.entropy / math.log(step.size)))
