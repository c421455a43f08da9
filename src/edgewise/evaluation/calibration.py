"""Thresholds that realise a cloud share."""

from collections.abc import Sequence

import numpy as np

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.evaluation.systems import Decoded, paired
from edgewise.evaluation.tasks.base import Task
from edgewise.policy import Policy
from edgewise.routers.base import Router

ROUNDS = 3


def thresholds_for(
    shares: Sequence[float],
    router: Router,
    task: Task,
    *,
    edge: EdgeModel,
    cloud: CloudModel,
    deadline: float = Policy().deadline,
    rounds: int = ROUNDS,
) -> dict[float, float]:
    """For each share the threshold that this fraction of the scores reaches.

    Scores are those of the pair's own answers: they drift once the cloud has written into the
    prefix, so the answers are made anew with each estimate. The first estimate for the smallest
    share is from answers of the edge alone, for the others from those of the share before.
    """

    def scores_at(threshold: float) -> list[float]:
        decoder = paired(edge, router, threshold, cloud, deadline=deadline)
        system = Decoded(decoder, task.max_tokens)
        tokens = (token for question in task.questions for token in system.ask(question).tokens)
        return [token.score for token in tokens if token.score is not None]

    found: dict[float, float] = {}
    scores = scores_at(1.0)
    for share in sorted(shares):
        threshold = reached_by(share, scores)
        for _ in range(rounds - 1):
            scores = scores_at(threshold)
            threshold = reached_by(share, scores)
        found[share] = threshold
    return found


def reached_by(share: float, scores: Sequence[float]) -> float:
    """The smallest threshold that at most a fraction `share` of the scores reaches.

    Among many equal scores it lies above them: all of them would be more than was asked for.
    """
    threshold = float(np.quantile(scores, 1 - share, method="lower"))
    if np.mean(np.asarray(scores) >= threshold) > share:
        threshold = min(1.0, float(np.nextafter(threshold, 2.0)))
    return threshold
