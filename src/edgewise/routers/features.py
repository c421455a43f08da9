"""What a trained router sees of a step: the same in training and at run time."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Floats, Needs, Step
from edgewise.routers.card import Input

SCALARS = 4
"""Number of scalar features: entropy in nats, max-prob, margin, LogTokU."""

EVIDENCE = 10
"""How many of the likeliest ids' logits LogTokU reads."""

_NEEDS: dict[Input, Needs] = {
    "hidden": Needs.HIDDEN,
    "top_logprobs": Needs.ENTROPY | Needs.TOP,
    "scalars": Needs.ENTROPY | Needs.TOP,
    "token_embedding": Needs.NOTHING,
}


def needs_of(inputs: Sequence[Input]) -> Needs:
    """What a step must keep for these inputs."""
    needs = Needs.NOTHING
    for name in inputs:
        needs |= _NEEDS[name]
    return needs


def top_of(inputs: Sequence[Input], top_k: int) -> int:
    """How many of the likeliest ids a step must keep for these inputs."""
    if "scalars" in inputs:
        return max(top_k, EVIDENCE)
    return top_k if "top_logprobs" in inputs else 0


def width_of(inputs: Sequence[Input], hidden_size: int, top_k: int) -> int:
    """Length of the feature vector; the token's embedding is looked up and adds nothing to it."""
    sizes = {
        "hidden": hidden_size,
        "top_logprobs": top_k,
        "scalars": SCALARS,
        "token_embedding": 0,
    }
    return sum(sizes[name] for name in inputs)


def features(step: Step, inputs: Sequence[Input], top_k: int) -> Floats:
    """float32[width_of(...)]: the inputs in their order, not yet normalised."""
    parts = [feature(name, step, top_k) for name in inputs if name != "token_embedding"]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


def feature(name: Input, step: Step, top_k: int) -> Floats:
    """One input as float32."""
    if name == "hidden":
        return step.hidden
    if name == "top_logprobs":
        return _logprobs(step, top_k)
    first, second = map(math.exp, _logprobs(step, 2))
    _, logits = step.top(EVIDENCE)
    return np.array([step.entropy, first, first - second, logtoku(logits)], np.float32)


def _logprobs(step: Step, k: int) -> Floats:
    _, logits = step.top(k)
    return logits - logits[0] + np.float32(step.logprob(step.proposed))


def logtoku(logits: Floats) -> float:
    """Aleatoric times epistemic uncertainty of the largest logits, float32[k], read as evidence.

    Ma et al. 2025 (arXiv 2502.00290), equations 3-6: with x the logits (negative ones count as 0)
    and S their sum, AU = -sum x_i/S (digamma(x_i + 1) - digamma(S + 1)) and EU = k / (S + k). The
    value is AU * EU, with AU over its greatest value log k: from 0 to 1 (no evidence at all).
    As a score it ranks tokens badly: where many words would do, many logits are large, which
    counts as much evidence, and logits have no zero of their own. Beside other inputs it tells
    how large they are, which log-probs do not.
    """
    size = len(logits)
    evidence = np.maximum(logits.astype(np.float64), 0.0)
    total = float(evidence.sum())
    if total == 0.0:
        return 1.0
    shifted = digamma(np.append(evidence, total) + 1.0)
    aleatoric = float(-(evidence / total) @ (shifted[:-1] - shifted[-1]))
    return min(1.0, max(0.0, aleatoric / math.log(size)) * size / (total + size))


def digamma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The digamma function for x > 0, to 1e-9.

    Recurrence to x + 6, then the asymptotic series: Abramowitz and Stegun 6.3.5 and 6.3.18.
    """
    below = sum((1.0 / (x + i) for i in range(6)), np.zeros_like(x))
    y = x + 6.0
    inverse = 1.0 / (y * y)
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse / 240)))
    return np.log(y) - 0.5 / y - series - below
