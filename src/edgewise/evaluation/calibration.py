"""Thresholds that realise a cloud share."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.evaluation.systems import Decoded, Outcome, cloud_share, outcome_of, paired
from edgewise.evaluation.tasks.base import Task
from edgewise.loop.policy import LONGEST_DEADLINE
from edgewise.routers.base import Router

ROUNDS = 5
SETTLED = 0.03
"""A realised share this close to the one asked for (relative) is taken."""


class Calibrated(msgspec.Struct, frozen=True):
    """A threshold, the cloud share that it realised, and which answers were right."""

    threshold: float
    share: float
    right: tuple[bool, ...]


def thresholds_for(
    shares: Sequence[float],
    router: Router,
    task: Task,
    *,
    edge: EdgeModel,
    cloud: CloudModel,
    deadline: float = LONGEST_DEADLINE,
    rounds: int = ROUNDS,
    done: Callable[[], None] = lambda: None,
) -> dict[float, Calibrated]:
    """For each share a threshold, by the pair's own answers to `task`.

    The threshold is the one that this fraction of the scores reaches. Scores drift once the cloud
    has written into the prefix, so the answers are made anew with each estimate, until the share
    that it realises settles or `rounds` are over; the best of them is kept. The first estimate
    for the smallest share is from answers of the edge alone, for the others from those of the
    share before. `done` is called after each answer.
    """

    def answers_at(threshold: float) -> tuple[list[float], list[Outcome]]:
        system = Decoded(paired(edge, router, threshold, cloud, deadline=deadline), task.max_tokens)
        scores: list[float] = []
        outcomes: list[Outcome] = []
        for question in task.questions:
            answer = system.ask(question)
            scores += [token.score for token in answer.tokens if token.score is not None]
            outcomes.append(outcome_of(question, answer))
            done()
        return scores, outcomes

    found: dict[float, Calibrated] = {}
    scores, _ = answers_at(1.0)
    for share in sorted(shares):
        tried: list[Calibrated] = []
        for _ in range(rounds):
            threshold = reached_by(share, scores)
            if tried and threshold == tried[-1].threshold:
                break
            scores, outcomes = answers_at(threshold)
            right = tuple(outcome.right for outcome in outcomes)
            tried.append(Calibrated(threshold, cloud_share(outcomes), right))
            if abs(tried[-1].share - share) <= SETTLED * share:
                break
        found[share] = min(tried, key=lambda point: abs(point.share - share))
    return found


def reached_by(share: float, scores: Sequence[float]) -> float:
    """The smallest threshold that at most a fraction `share` of the scores reaches, or one more.

    Among many equal scores it lies above them: all of them would be more than was asked for.
    """
    threshold = float(np.quantile(scores, 1 - share, method="lower"))
    if np.mean(np.asarray(scores) >= threshold) > share:
        threshold = min(1.0, float(np.nextafter(threshold, 2.0)))
    return threshold
