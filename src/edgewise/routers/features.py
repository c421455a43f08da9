"""What a trained router sees of a step: the same in training and at run time."""

import math
from collections.abc import Sequence

import numpy as np

from edgewise.edge.base import Floats, Needs, Step
from edgewise.routers.card import Input
from edgewise.routers.uncertainty import LogTokU

SCALARS = 4
"""Number of scalar features: entropy in nats, max-prob, margin, LogTokU."""

_LOGTOKU = LogTokU()
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
        return max(top_k, _LOGTOKU.top)
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
    uncertain = _LOGTOKU.score(step)
    return np.array([step.entropy, first, first - second, uncertain], np.float32)


def _logprobs(step: Step, k: int) -> Floats:
    _, logits = step.top(k)
    return logits - logits[0] + np.float32(step.logprob(step.proposed))
