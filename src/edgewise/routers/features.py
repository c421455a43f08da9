"""What a trained router sees of a step: the same in training and at run time."""

import math
from collections.abc import Sequence

import numpy as np

from edgewise.edge.base import Floats, Needs, Step
from edgewise.routers.card import Input

SCALARS = 3
"""Number of scalar features: entropy in nats, max-prob, margin."""

_NEEDS: dict[Input, Needs] = {
    "hidden": Needs.HIDDEN,
    "top_logprobs": Needs.ENTROPY | Needs.TOP,
    "scalars": Needs.ENTROPY | Needs.TOP,
}


def needs_of(inputs: Sequence[Input]) -> Needs:
    """What a step must keep for these inputs."""
    needs = Needs.NOTHING
    for name in inputs:
        needs |= _NEEDS[name]
    return needs


def top_of(inputs: Sequence[Input], top_k: int) -> int:
    """How many of the likeliest ids a step must keep for these inputs."""
    return max(top_k, 2) if Needs.TOP in needs_of(inputs) else 0


def width_of(inputs: Sequence[Input], hidden_size: int, top_k: int) -> int:
    """Length of the feature vector."""
    sizes = {"hidden": hidden_size, "top_logprobs": top_k, "scalars": SCALARS}
    return sum(sizes[name] for name in inputs)


def features(step: Step, inputs: Sequence[Input], top_k: int) -> Floats:
    """float32[width_of(...)]: the inputs in their order, not yet normalised."""
    parts = [_feature(name, step, top_k) for name in inputs]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _feature(name: Input, step: Step, top_k: int) -> Floats:
    if name == "hidden":
        return step.hidden
    if name == "top_logprobs":
        return np.array([c.logprob for c in step.candidates(top_k)], np.float32)
    first, second = (math.exp(c.logprob) for c in step.candidates(2))
    return np.array([step.entropy, first, first - second], np.float32)
