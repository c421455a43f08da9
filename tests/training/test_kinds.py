"""How a kind is fitted, and what is made of a fit that gives back something odd."""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edgewise.errors import UsageError
from edgewise_lab.training.fit import Data, Fitted, Recipe, fit_of, fitted
from tests.training.linear import KIND, Linear, planted

HERE = __name__
GOOD = Fitted(
    {"weights": np.ones(3, np.float32)},
    0.1,
    0.2,
    np.array([0.2, 0.8], np.float32),
    np.array([0.0, 1.0], np.float32),
)


class Odd(Linear):
    """Gives back what it is told to."""

    gives: Any = GOOD

    @classmethod
    def fit(cls, data: Data, recipe: Recipe, done: Callable[[], None]) -> Fitted:
        done()
        return cls.gives


class Unloaded:
    """Learns, but nothing can be made of it."""

    def score(self, step: object) -> float:
        return 0.0

    @staticmethod
    def fit(data: Data, recipe: Recipe, done: Callable[[], None]) -> Fitted:
        return GOOD


class Unfitted:
    """Is loaded, but never learns."""

    @classmethod
    def load(cls, card: object, folder: object) -> "Unfitted":
        return cls()

    def score(self, step: object) -> float:
        return 0.0


def test_a_kind_brings_its_fit() -> None:
    counted: list[None] = []
    found = fitted(KIND, planted(400), Recipe(epochs=3), lambda: counted.append(None))
    assert len(counted) == 3
    assert found.loss < found.baseline_loss
    assert set(found.tensors) == {"mean", "std", "weights"}
    assert len(found.scores) == len(found.labels) == 40


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("entropy", "cannot be trained: it has no fit"),
        (f"{HERE}:Unfitted", "cannot be trained: it has no fit"),
        (f"{HERE}:Unloaded", "cannot be trained: it has no load"),
        ("magic", "There is no router 'magic'"),
        (f"{HERE}:Nobody", "no attribute 'Nobody'"),
    ],
)
def test_a_kind_that_does_not_learn(kind: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        fit_of(kind)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is here")
def test_the_perceptron_needs_torch_and_says_so() -> None:
    with pytest.raises(UsageError, match=r"edgewise\[lab\]"):
        fit_of("mlp")


@pytest.mark.parametrize(
    ("gives", "problem"),
    [
        (None, "gave a NoneType, no Fitted"),
        (replace(GOOD, tensors={"w": [1.0]}), "'w' that"),  # type: ignore[dict-item]
        (replace(GOOD, tensors={"w": np.ones(2, np.int64)}), "'w' that"),
        (replace(GOOD, tensors={"w": np.array([np.nan])}), "'w' with weights that are not numbers"),
        (replace(GOOD, scores=np.ones(3, np.float32)), "scores and labels that do not go together"),
        (
            replace(GOOD, scores=np.empty(0, np.float32), labels=np.empty(0, np.float32)),
            "do not go together",
        ),
        (replace(GOOD, scores=np.array([0.5, 1.5], np.float32)), "not from 0 to 1"),
        (replace(GOOD, labels=np.array([0.0, -1.0], np.float32)), "not from 0 to 1"),
        (replace(GOOD, loss=float("nan")), "losses that are not numbers"),
        (replace(GOOD, baseline_loss=float("inf")), "losses that are not numbers"),
    ],
)
def test_a_fit_that_gives_back_something_odd(
    monkeypatch: pytest.MonkeyPatch, gives: object, problem: str
) -> None:
    monkeypatch.setattr(Odd, "gives", gives)
    with pytest.raises(UsageError, match=problem) as caught:
        fitted(f"{HERE}:Odd", planted(400), Recipe(), lambda: None)
    assert caught.value.hint == "repair its class"
