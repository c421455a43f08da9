"""A router that goes on learning from the verdicts it gets.

A rescaled score ranks tokens as it did, so a calibration learnt online buys nothing at an equal
share. What can help is to weigh the trained score anew against what the edge model itself shows.
The verdict of a consult says whether the cloud would have written another token, and how sure it
was of it; a logistic regression on few inputs learns from that, a verdict at a time. What is not
consulted has no verdict: a small part of the budget goes to places drawn at random, which count
for as many as they stand for, up to a bound.

Verdicts of an answer are learnt when it is over, so that within one a router is pure and a rewind
has nothing to undo.
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
from edgewise.evaluation.systems import Outcome
from edgewise.loop.policy import Budget, Policy
from edgewise.routers.base import Router
from edgewise.routers.card import WEIGHTS, RouterCard
from edgewise.routers.features import features
from edgewise.routers.uncertainty import Entropy, Margin, MaxProb

Vector = NDArray[np.float64]

UNTRAINED: tuple[Router, ...] = (Entropy(), TopEntropy(), MaxProb(), Margin())
SIGNALS = 2 + len(UNTRAINED)
"""Inputs: one, the trained score's log-odds and those of the untrained scores."""

_LARGEST = 10.0
"""Log-odds beyond it say no more."""

_SIGNAL_VARIANCE, _HIDDEN_VARIANCE = 1.0, 0.03
"""Of the weights before any verdict: how far they may be from the trained router's."""


class Seen(NamedTuple):
    """A token with a verdict: the learner's inputs, the consult's worth (0 to 1), and a weight."""

    inputs: Vector
    worth: float
    weight: float = 1.0


class Logistic:
    """Bayesian logistic regression, a token at a time, in a state of fixed size.

    The extended Kalman filter's step for a Gaussian belief in the weights (mean m [n], covariance
    P [n, n]): with p = sigmoid(m x) and v = w p (1 - p), P becomes P - v P x (P x)' / (1 + v x'P x)
    and m becomes m + w (y - p) P x with the new P. It learns ever less.
    """

    def __init__(self, mean: Vector, variance: Vector) -> None:
        self.mean = np.array(mean, np.float64)
        self.covariance = np.diag(variance).astype(np.float64)

    def chance(self, x: Vector) -> float:
        """That a consult is worth it."""
        return sigmoid(float(self.mean @ x))

    def learn(self, seen: Seen) -> None:
        """Take one verdict."""
        x = seen.inputs
        p = self.chance(x)
        variance = seen.weight * p * (1 - p)
        spread = self.covariance @ x
        spread /= math.sqrt(1 + variance * float(x @ spread))
        self.covariance -= variance * np.outer(spread, spread)
        self.mean += seen.weight * (seen.worth - p) * (self.covariance @ x)


class Inputs:
    """What a learner sees of a step: the signals, and with `layer` the router's hidden layer."""

    def __init__(self, base: Router, layer: "HiddenLayer | None" = None) -> None:
        self._base, self._layer = base, layer
        self._known: dict[int, tuple[Step, Vector]] = {}

    def of(self, step: Step) -> Vector:
        """float64[n]; the one and the trained score come first."""
        # By identity: the step that is kept along keeps its own from being another's.
        known = self._known.get(id(step))
        if known is None:
            known = self._known[id(step)] = step, self._computed(step)
        return known[1]

    def forget(self) -> None:
        """All steps."""
        self._known.clear()

    def _computed(self, step: Step) -> Vector:
        scores = [self._base.score(step), *(router.score(step) for router in UNTRAINED)]
        signals = [1.0, *map(log_odds, scores)]
        if self._layer is None:
            return np.array(signals)
        return np.concatenate([signals, self._layer.of(step)])

    def start(self) -> Logistic:
        """The trained router as it is, not yet sure of anything."""
        width = 0 if self._layer is None else self._layer.width
        mean = np.zeros(SIGNALS + width)
        mean[1] = 1.0
        variance = np.full(SIGNALS + width, _SIGNAL_VARIANCE)
        variance[SIGNALS:] = _HIDDEN_VARIANCE
        # The trained score is the chance of another thing: its level says little.
        variance[0] = _LARGEST
        return Logistic(mean, variance)


class HiddenLayer:
    """What the last layer of a trained perceptron reads, of a checkpoint with one hidden layer."""

    def __init__(self, card: RouterCard, folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        self._card = card
        self._mean, self._std = tensors["mean"], tensors["std"]
        self._weight, self._bias = tensors["layers.0.weight"], tensors["layers.0.bias"]
        self.width = len(self._bias)

    def of(self, step: Step) -> Vector:
        """float64[width]."""
        x = (features(step, self._card.inputs, self._card.top_k) - self._mean) / self._std
        return np.maximum(self._weight @ x + self._bias, 0.0).astype(np.float64)


class Online(Scorer):
    """A router with the weights it has learnt so far."""

    def __init__(self, inputs: Inputs, learnt: Logistic) -> None:
        self.inputs, self.learnt = inputs, learnt

    def score(self, step: Step, written: Sequence[int]) -> float:
        return self.learnt.chance(self.inputs.of(step))


class Habits(msgspec.Struct, frozen=True):
    """How a stream is learnt from.

    `explored` of the share goes to places drawn at random, which count up to `heaviest` times.
    `sure`: a verdict is worth the cloud's probability of its token where that is another than the
    edge's, else 1; either way 0 where it is the same. `every`: each token's verdict is told, as if
    all had been consulted: a bound, not a method.
    """

    share: float
    explored: float = 0.2
    heaviest: float = 10.0
    sure: bool = True
    every: bool = False


class Stream:
    """Answers one after another under the product's own budget, learning between them."""

    def __init__(self, router: Online, habits: Habits, seed: int) -> None:
        self.router, self._habits = router, habits
        self._policy = Policy(cloud_share=habits.share)
        self._budget = Budget()
        self._rng = np.random.default_rng(seed)

    def answer(self, tree: Tree) -> Outcome:
        """The next question's answer; its verdicts are learnt at its end."""
        segment, at, consults, changed = tree.root, 0, 0, 0
        seen: list[Seen] = []
        while at < len(segment.ids):
            inputs = self.router.inputs.of(segment.steps[at])
            weight = self._asks(self.router.learnt.chance(inputs))
            written = segment.ids[at]
            if weight:
                written = tree.by_cloud(segment, at).id
                self._budget = self._policy.charge(self._budget, 1)
                consults += 1
                changed += written != segment.ids[at]
            if weight or self._habits.every:
                worth = self._worth(tree, segment, at)
                seen.append(Seen(inputs, worth, 1.0 if self._habits.every else weight))
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
        """The weight of the verdict that a consult here would bring; 0: none."""
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
