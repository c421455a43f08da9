"""Scores lie in [0, 1], rise with uncertainty, and mean what their formulas say."""

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

from edgewise.edge.base import Floats
from edgewise.edge.step import LogitsStep
from edgewise.routers.base import Router
from edgewise.routers.uncertainty import Entropy, Margin, MaxProb

ROUTERS: list[Callable[[], Router]] = [MaxProb, Margin, Entropy]
SIZE = 300

rows = st.integers(10, SIZE).flatmap(
    lambda size: arrays(
        np.float32,
        size,
        elements=st.sampled_from([-2.0, 0.0, 1.0, 30.0]) | st.floats(-1e4, 1e4, width=32),
    )
)


def score(router: Router, logits: Floats) -> float:
    step = LogitsStep(
        1,
        logits,
        None,
        is_fresh=lambda: True,
        buffer=np.empty(len(logits), np.float32),
        needs=router.needs,
        top=router.top,
    )
    return router.score(step)


def peaked(gap: float) -> Floats:
    """One id `gap` above a second, the rest far below."""
    logits = np.full(SIZE, 1.0, np.float32)
    logits[[17, 40]] = [20.0, 20.0 - gap]
    return logits


@pytest.mark.parametrize("make", ROUTERS)
class TestEveryRouter:
    @given(logits=rows)
    def test_scores_lie_between_0_and_1(self, make: Callable[[], Router], logits: Floats) -> None:
        assert 0.0 <= score(make(), logits) <= 1.0

    @pytest.mark.parametrize("size", [10, 258, 32_000, 151_936])
    @pytest.mark.parametrize("value", [-5.0, 0.0, 0.1, 12.3])
    def test_equal_logits(self, make: Callable[[], Router], size: int, value: float) -> None:
        assert 0.0 <= score(make(), np.full(size, value, np.float32)) <= 1.0


@pytest.mark.parametrize("make", ROUTERS)
def test_a_certain_step_scores_below_a_divided_one(make: Callable[[], Router]) -> None:
    scores = [score(make(), peaked(gap)) for gap in (15.0, 3.0, 1.0, 0.1)]
    assert scores == sorted(scores)
    assert scores[0] < scores[-1]


def test_max_prob() -> None:
    logits = np.log(np.array([0.7, 0.2, 0.1], np.float32))
    assert score(MaxProb(), logits) == pytest.approx(0.3, abs=1e-6)


def test_margin() -> None:
    logits = np.log(np.array([0.1, 0.7, 0.2], np.float32))
    assert score(Margin(), logits) == pytest.approx(0.5, abs=1e-6)


def test_entropy_is_a_share_of_its_greatest_value() -> None:
    logits = np.full(64, -60.0, np.float32)
    logits[:8] = 0.0
    assert score(Entropy(), logits) == pytest.approx(0.5, abs=1e-5)
    assert score(Entropy(), np.zeros(64, np.float32)) == pytest.approx(1.0, abs=1e-6)
