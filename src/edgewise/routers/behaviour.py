"""Whether two builds are of one model, by what they expect of fixed texts.

Quantisation and another engine change a model's probabilities a little, another training much.
"""

import math
from collections.abc import Sequence
from contextlib import closing

from edgewise.edge.base import PROBES, EdgeModel

LONGEST = 32
"""Ids of a text that are read."""

LEAST = -12.0
"""Lower logprobs count as this one: what is all but impossible says little, and varies much."""

APART = 0.6
"""Nats, root mean square, that two builds of one model may differ by.

Of an edge model 64 wide f16 lay 0.07 off q8_0, q5_0 0.55, the larger model beside it 3.0.
"""


def behaviour_of(edge: EdgeModel) -> tuple[float, ...]:
    """The logprob of every id of the probe texts but the first of each, nats."""
    found: list[float] = []
    for text in PROBES:
        ids = edge.tokenizer.encode(text)[: min(LONGEST, edge.context)]
        with closing(edge.session()) as session:
            session.open(ids[:1])
            for position in range(1, len(ids)):
                logprob = session.step().logprob(ids[position])
                found.append(round(max(LEAST, logprob), 3))
                session.extend(ids[position : position + 1])
    return tuple(found)


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Root mean square of the differences, nats; infinite where they are not of the same texts."""
    if not one or len(one) != len(other):
        return math.inf
    return math.dist(one, other) / math.sqrt(len(one))
