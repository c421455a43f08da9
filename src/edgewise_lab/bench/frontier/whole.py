"""Whole questions to the cloud: composed of the answers that edge and cloud gave alone, exactly.

A question that goes to the cloud costs what the cloud's own answer cost, and what was done before
it went; nothing else happens, so sums are what a run of its own would measure.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from edgewise_lab.bench.frontier.billing import Cost, MeasuredAnswer

Way = Literal["routed", "cascade"]
"""`routed`: a score of the prompt decides, before anything is written. `cascade`: the edge answers,
and its answer's score decides whether the cloud answers as well."""

NEVER = float("-inf")
"""The score of a question that is not sent whatever the threshold."""

ROUNDING = 1e-12
"""Relative: sums of the same costs in another order."""

_Array = NDArray[np.float64]


def share(answer: MeasuredAnswer) -> tuple[float, float]:
    """The cloud share."""
    outcome = answer.outcome
    return outcome.cloud_tokens + outcome.wasted_tokens, outcome.output_tokens


def seconds(answer: MeasuredAnswer) -> tuple[float, float]:
    """The mean time of an answer."""
    return answer.outcome.seconds, 1.0


def cost_of(cost: Cost, answers: Sequence[MeasuredAnswer]) -> float:
    """That of all of them."""
    parts = [cost(answer) for answer in answers]
    return sum(a for a, _ in parts) / sum(b for _, b in parts)


class Whole(NamedTuple):
    """Edge and cloud alone on the same questions, each with a score: the highest go to the cloud.

    Nothing is shown of an answer that may still be replaced: in a cascade the first text, also of
    an answer that stays the edge's, comes when that is whole.
    """

    way: Way
    edge: Sequence[MeasuredAnswer]
    cloud: Sequence[MeasuredAnswer]
    scores: Sequence[float]

    def at(self, threshold: float) -> list[MeasuredAnswer]:
        """Those that reach the threshold to the cloud."""
        triples = zip(self.edge, self.cloud, self.scores, strict=True)
        return [
            self._sent(edge, cloud) if score >= threshold and score > NEVER else self._kept(edge)
            for edge, cloud, score in triples
        ]

    def within(self, cost: Cost, most: float) -> float:
        """The lowest threshold at which the answers cost `most` at most; infinite without any."""
        kept, sent = (
            np.array([cost(answer) for answer in answers], np.float64)
            for answers in (
                [self._kept(edge) for edge in self.edge],
                [self._sent(*pair) for pair in zip(self.edge, self.cloud, strict=True)],
            )
        )
        scores = np.array(self.scores, np.float64)
        order = np.argsort(-scores, kind="stable")
        totals = kept.sum(axis=0) + np.cumsum((sent - kept)[order], axis=0)
        ranked = scores[order]
        # Of equal scores all are sent or none.
        ends = np.append(ranked[1:] < ranked[:-1], True) & (ranked > NEVER)
        fits = ends & (totals[:, 0] / totals[:, 1] <= most * (1 + ROUNDING))
        places = np.flatnonzero(fits)
        return float(ranked[places[-1]]) if len(places) else float("inf")

    def _kept(self, edge: MeasuredAnswer) -> MeasuredAnswer:
        if self.way == "routed":
            return edge
        return replace(edge, ttft=edge.outcome.seconds, gap=0.0)

    def _sent(self, edge: MeasuredAnswer, cloud: MeasuredAnswer) -> MeasuredAnswer:
        routed = self.way == "routed"
        # The score of a prompt comes with the edge's first step, over all of it.
        before = edge.ttft if routed else edge.outcome.seconds
        written = 0 if routed else edge.decodes - 1
        return replace(
            cloud,
            outcome=replace(
                cloud.outcome,
                uncertainty=edge.outcome.uncertainty,
                seconds=before + cloud.outcome.seconds,
            ),
            ttft=before + cloud.ttft,
            decodes=1 + written,
            positions=edge.positions - (edge.decodes - 1 - written),
        )


def uncertain(edge: Sequence[MeasuredAnswer]) -> list[float]:
    """A cascade's scores: how unsure the edge was over its answer."""
    return [answer.outcome.uncertainty for answer in edge]


def worth(edge: Sequence[MeasuredAnswer], cloud: Sequence[MeasuredAnswer]) -> list[float]:
    """An oracle's scores: only what the cloud alone gets right, what costs it least first."""
    return [
        1 / (1 + theirs.outcome.output_tokens)
        if theirs.outcome.right and not own.outcome.right
        else NEVER
        for own, theirs in zip(edge, cloud, strict=True)
    ]


def mixed(
    cost: Cost, edge: Sequence[MeasuredAnswer], cloud: Sequence[MeasuredAnswer], most: float
) -> float:
    """Of all questions the part that may go to the cloud at random, in expectation, at this cost.

    The most of them where sending makes it cheaper; 0 where even none is too dear.
    """
    low, high = (np.sum([cost(one) for one in answers], axis=0) for answers in (edge, cloud))
    if _ratio(high) <= most:
        return 1.0
    if _ratio(low) >= most:
        return 0.0
    return float((most * low[1] - low[0]) / ((high - low)[0] - most * (high - low)[1]))


def _ratio(parts: _Array) -> float:
    return float(parts[0] / parts[1])
