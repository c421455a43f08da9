"""The rollouts that suit a model."""

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import LlamaModel
from edgewise.rollouts.base import OneByOne, Rollouts
from edgewise.rollouts.cloud import CloudRollouts
from edgewise.rollouts.llamacpp import LlamaRollouts


def edge_rollouts(edge: EdgeModel) -> Rollouts:
    """Many continuations by the edge model at a time."""
    return LlamaRollouts(edge) if isinstance(edge, LlamaModel) else OneByOne(edge)


def cloud_rollouts(cloud: CloudModel) -> Rollouts:
    """Many continuations by the cloud model at a time, in this process or behind its engine."""
    return CloudRollouts(cloud) if cloud.local is None else edge_rollouts(cloud.local)
