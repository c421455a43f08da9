"""A router that goes on learning from the completions it gets.

A rescaled score ranks tokens as it did, so a calibration learnt online buys nothing at an equal
share. What can help is to weigh the trained score anew against what the edge model itself shows: a
logistic regression on the score's log-odds and other inputs, a completion at a time. That a consult
changed the token says little, since most changes are of words; so a completion is worth the cloud's
probability of its token. What is not consulted has no completion. Consults are chosen by what the
regression itself sees, which does not bias it as far as that decides the completions; so that no
kind of token stays without, a small part of the budget goes to places drawn at random.

Completions of an answer are learnt when it is over, so that within one a router is pure and a
rewind has nothing to undo.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from benchmarks.routers.gates import TopEntropy
from benchmarks.routers.tree import Scorer, Segment, Tree
from edgewise.edge.base import Step
from edgewise.loop.policy import Budget, Policy
from edgewise.routers.base import Router
from edgewise.routers.card import WEIGHTS, RouterCard
from edgewise.routers.features import features
from edgewise.routers.uncertainty import Entropy, Margin, MaxProb
from edgewise_lab.evaluation.systems import Outcome

Vector = NDArray[np.float64]

UNTRAINED: tuple[Router, ...] = (Entropy(), TopEntropy(), MaxProb(), Margin())

_LARGEST = 10.0
"""Log-odds beyond it say no more."""

_FURTHEST = 5.0
"""Standard deviations beyond it say no more."""

_TOGETHER = 0.25
"""The variance of the log-odds that a router's inputs may bring before any completion."""


class Seen(NamedTuple):
    """A token with a completion: the learner's inputs, the consult's worth (0 to 1), a weight."""

    inputs: Vector
    worth: float
    weight: float = 1.0


class Logistic:
    """Bayesian logistic regression, a token at a time; its state is two vectors.

    The extended Kalman filter's step for a Gaussian belief in the weights, mean m [n] and
    variances P [n], as if they were independent. With p = sigmoid(m x), v = w p (1 - p) and
    s = 1 + v sum(P x x), m becomes m + w (y - p) P x / s and P becomes P - v (P x)^2 / s.
    """

    def __init__(self, mean: Vector, variance: Vector) -> None:
        self.mean, self.variance = mean.copy(), variance.copy()

    def chance(self, x: Vector) -> float:
        """That a consult is worth it; within what the budget's controller reaches."""
        return sigmoid(min(_LARGEST, max(-_LARGEST, float(self.mean @ x))))

    def learn(self, seen: Seen) -> None:
        """Take one completion."""
        p = self.chance(seen.inputs)
        v = seen.weight * p * (1 - p)
        spread = self.variance * seen.inputs
        s = 1 + v * float(spread @ seen.inputs)
        self.mean += seen.weight * (seen.worth - p) / s * spread
        self.variance -= v / s * spread * spread


class Inputs:
    """What a learner sees of a step: one, the trained score's log-odds, and more."""

    def __init__(self, base: Router, more: "Signals | Standardised") -> None:
        self._base, self._more = base, more
        self._known: dict[int, tuple[Step, Vector]] = {}

    def of(self, step: Step) -> Vector:
        """float64[n]."""
        # By identity: the step that is kept along keeps its own from being another's.
        known = self._known.get(id(step))
        if known is None:
            first = [1.0, log_odds(self._base.score(step))]
            known = self._known[id(step)] = step, np.concatenate([first, self._more.of(step)])
        return known[1]

    def forget(self) -> None:
        """All steps."""
        self._known.clear()

    def start(self) -> Logistic:
        """The trained router as it is, not yet sure of anything."""
        more = np.zeros(self._more.width)
        return Logistic(
            np.concatenate([[0.0, 1.0], more]),
            np.concatenate([[1.0, 1.0], more + self._more.variance]),
        )


class Signals:
    """Log-odds of the untrained scores."""

    width, variance = len(UNTRAINED), 0.1

    def of(self, step: Step) -> Vector:
        """float64[width]."""
        return np.array([log_odds(router.score(step)) for router in UNTRAINED])


class Standardised:
    """The trained perceptron's own inputs, as its normalisation makes them."""

    def __init__(self, card: RouterCard, folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        self._card, self._mean, self._std = card, tensors["mean"], tensors["std"]
        self.width = len(self._mean)
        self.variance = _TOGETHER / self.width

    def of(self, step: Step) -> Vector:
        """float64[width]."""
        x = (features(step, self._card.inputs, self._card.top_k) - self._mean) / self._std
        return np.clip(x, -_FURTHEST, _FURTHEST).astype(np.float64)


class Online(Scorer):
    """A router with the weights it has learnt so far."""

    def __init__(self, inputs: Inputs, learnt: Logistic) -> None:
        self.inputs, self.learnt = inputs, learnt

    def score(self, step: Step, written: Sequence[int]) -> float:
        return self.learnt.chance(self.inputs.of(step))


class Habits(msgspec.Struct, frozen=True):
    """How a stream is learnt from.

    `explored` of the share goes to places drawn at random; their completions count for as many as
    they stand for, up to `heaviest`. `sure`: a completion is worth the cloud's probability of its
    token where that is another than the edge's, else 1; either way 0 where it is the same.
    """

    share: float
    explored: float = 0.1
    heaviest: float = 1.0
    sure: bool = True


class Stream:
    """Answers one after another under the product's own budget, learning between them."""

    def __init__(self, router: Online, habits: Habits, seed: int) -> None:
        self.router, self._habits = router, habits
        self._policy = Policy(cloud_share=habits.share)
        self._budget = Budget()
        self._rng = np.random.default_rng(seed)

    def answer(self, tree: Tree) -> Outcome:
        """The next question's answer; its completions are learnt at its end."""
        segment, at, consults, changed = tree.root, 0, 0, 0
        seen: list[Seen] = []
        while at < len(segment.ids):
            inputs = self.router.inputs.of(segment.steps[at])
            weight = self._asks(self.router.learnt.chance(inputs))
            written = segment.ids[at]
            if weight:
                written = tree.by_cloud(segment, at).id
                consults += 1
                changed += written != segment.ids[at]
                self._budget = self._policy.charge(self._budget, 1)
                seen.append(Seen(inputs, self._worth(tree, segment, at), weight))
            self._budget = self._policy.written(self._budget, by_cloud=weight > 0)
            if written == segment.ids[at]:
                at += 1
            else:
                segment, at = tree.branch(segment, at, written), 0
        for one in seen:
            self.router.learnt.learn(one)
        self._budget = self._policy.next_answer(self._budget)
        return tree.outcome(segment.prefix + segment.ids, consults, changed)

    def _asks(self, score: float) -> float:
        """The weight of the completion that a consult here would bring; 0: none."""
        if self._policy.decide(score, self._budget).ask:
            return 1.0
        rate = self._habits.explored * self._habits.share
        if self._budget.credit < 1 or self._rng.random() >= rate:
            return 0.0
        return min(1 / rate, self._habits.heaviest)

    def _worth(self, tree: Tree, segment: Segment, at: int) -> float:
        by_cloud = tree.by_cloud(segment, at)
        if by_cloud.id == segment.ids[at]:
            return 0.0
        return math.exp(by_cloud.logprob) if self._habits.sure else 1.0


def log_odds(score: float) -> float:
    """Within the bounds."""
    if score <= 0.0:
        return -_LARGEST
    if score >= 1.0:
        return _LARGEST
    return min(_LARGEST, max(-_LARGEST, math.log(score / (1.0 - score))))


def sigmoid(x: float) -> float:
    """Without overflow."""
    return 0.5 * (1.0 + math.tanh(0.5 * x))
