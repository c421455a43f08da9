"""Routers that need no training: the edge model's own uncertainty."""

import math

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Needs, Step


class MaxProb:
    """1 - p1: the probability that the likeliest token is not the one."""

    needs, top = Needs.ENTROPY, 0

    def score(self, step: Step) -> float:
        """From 0 (certain) to 1 - 1/V."""
        return 1.0 - math.exp(step.logprob(step.proposed))


class Margin:
    """1 - (p1 - p2): how close the second likeliest token is."""

    needs, top = Needs.ENTROPY | Needs.TOP, 2

    def score(self, step: Step) -> float:
        """From 0 (certain) to 1 (a tie)."""
        first, second = (math.exp(c.logprob) for c in step.candidates(2))
        return 1.0 - (first - second)


class Entropy:
    """H / log V: Shannon entropy over its greatest value."""

    needs, top = Needs.ENTROPY, 0

    def score(self, step: Step) -> float:
        """From 0 (certain) to 1 (uniform)."""
        return min(1.0, max(0.0, step.entropy / math.log(step.size)))


class LogTokU:
    """Aleatoric times epistemic uncertainty of the top logits read as evidence.

    Ma et al. 2025 (arXiv 2502.00290), equations 3-6: with x the k largest logits (negative ones
    count as 0) and S their sum, AU = -sum x_i/S (digamma(x_i + 1) - digamma(S + 1)) and
    EU = k / (S + k). The score is AU * EU, with AU over its greatest value log k.
    """

    needs, top = Needs.TOP, 10

    def score(self, step: Step) -> float:
        """From 0 (certain) to 1 (no evidence for any token)."""
        _, logits = step.top(self.top)
        evidence = np.maximum(logits.astype(np.float64), 0.0)
        total = float(evidence.sum())
        if total == 0.0:
            return 1.0
        shifted = digamma(np.append(evidence, total) + 1.0)
        aleatoric = float(-(evidence / total) @ (shifted[:-1] - shifted[-1]))
        epistemic = self.top / (total + self.top)
        return min(1.0, max(0.0, aleatoric / math.log(self.top)) * epistemic)


def digamma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The digamma function for x > 0, to 1e-9.

    Recurrence to x + 6, then the asymptotic series: Abramowitz and Stegun 6.3.5 and 6.3.18.
    """
    below = sum((1.0 / (x + i) for i in range(6)), np.zeros_like(x))
    y = x + 6.0
    inverse = 1.0 / (y * y)
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse / 240)))
    return np.log(y) - 0.5 / y - series - below
