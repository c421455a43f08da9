"""Thresholds that realise a cloud share."""

from collections.abc import Sequence

import numpy as np

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.evaluation.questions import Question
from edgewise.evaluation.systems import ask, paired
from edgewise.routers.base import Router

ROUNDS = 3


def threshold_for(
    share: float,
    router: Router,
    questions: Sequence[Question],
    *,
    edge: EdgeModel,
    cloud: CloudModel,
    rounds: int = ROUNDS,
) -> float:
    """The threshold that a fraction `share` of the scores reaches.

    Scores are those of the pair's own answers: they drift once the cloud has written into the
    prefix, so the answers are made anew with each estimate. The first estimate is from answers
    of the edge alone.
    """
    threshold = 1.0
    for _ in range(rounds):
        decoder = paired(edge, router, threshold, cloud)
        tokens = (token for question in questions for token in ask(decoder, question).tokens)
        scores = [token.score for token in tokens if token.score is not None]
        threshold = float(np.quantile(scores, 1 - share))
    return threshold
