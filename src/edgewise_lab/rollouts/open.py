"""The rollouts that suit a model."""

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise_lab.rollouts.base import OneByOne, Rollouts
from edgewise_lab.rollouts.cloud import CloudRollouts
from edgewise_lab.rollouts.together import Together

WIDTH = 32
"""Sequences that are decoded together."""


def edge_rollouts(edge: EdgeModel, width: int = WIDTH) -> Rollouts:
    """Many continuations by the edge model, `width` at a time where its engine can do that."""
    sequences = edge.sequences(width)
    return OneByOne(edge) if sequences is None else Together(edge, sequences)


def cloud_rollouts(cloud: CloudModel) -> Rollouts:
    """Many continuations by the cloud model at a time, in this process or behind its engine."""
    return CloudRollouts(cloud) if cloud.local is None else edge_rollouts(cloud.local)
