"""Signals: one value in one list is an input; LogTokU is what its formula says."""

import math
from collections.abc import Callable

import hypothesis.strategies as st
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

from edgewise.edge.base import Floats, Needs, Step
from edgewise.edge.step import LogitsStep
from edgewise.errors import UsageError
from edgewise.routers.base import Router
from edgewise.routers.signals import (
    EVIDENCE,
    SIGNALS,
    Signal,
    digamma,
    logtoku,
    needs_of,
    reader_of,
    top_of,
    width_of,
)
from edgewise.routers.untrained import Entropy, Margin, MaxProb
from edgewise.testing.scripted_edge import ScriptedEdge, noise

logits = arrays(
    np.float32,
    EVIDENCE,
    elements=st.sampled_from([-2.0, 0.0, 1.0, 30.0]) | st.floats(-1e4, 1e4, width=32),
)


def test_one_value_in_the_list_is_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def likeliest(step: Step, k: int) -> Floats:
        return step.top(k)[0].astype(np.float32)

    added = Signal("likeliest", likeliest, "k", Needs.TOP)
    monkeypatch.setitem(SIGNALS, "likeliest", added)
    inputs = ("likeliest", "scalars")
    edge = ScriptedEdge(noise())
    session = edge.session(needs_of(inputs), top=top_of(inputs, 12))
    session.open([1, 2, 3])
    step = session.step()
    found = reader_of(inputs, 12)(step)
    assert len(found) == width_of(inputs, edge.hidden_size, 12)
    assert found[:12].tolist() == step.top(12)[0].tolist()


def test_an_input_of_no_name_is_refused() -> None:
    with pytest.raises(UsageError, match="smell") as caught:
        needs_of(("hidden", "smell"))
    assert caught.value.setting == "inputs"


@given(logits=logits)
def test_it_follows_the_paper_and_lies_between_0_and_1(logits: Floats) -> None:
    best = [max(float(x), 0.0) for x in logits]
    found, total = logtoku(logits), math.fsum(best)
    assert 0.0 <= found <= 1.0
    if total == 0.0:
        assert found == 1.0
        return
    aleatoric = -sum(
        x / total * float(mpmath.digamma(x + 1) - mpmath.digamma(total + 1)) for x in best
    )
    expected = aleatoric / math.log(EVIDENCE) * EVIDENCE / (total + EVIDENCE)
    assert found == pytest.approx(expected, abs=1e-8)


def test_little_evidence_is_above_much() -> None:
    many = np.array([20.0, 17.0, *[1.0] * 8], np.float32)
    assert logtoku(many) < logtoku(many / np.float32(10.0))
    assert logtoku(np.full(EVIDENCE, -1.0, np.float32)) == 1.0


@given(x=st.floats(1e-3, 1e6))
def test_digamma(x: float) -> None:
    expected = float(mpmath.digamma(x))
    assert digamma(np.array([x]))[0] == pytest.approx(expected, abs=1e-9, rel=1e-9)


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
    buffer = np.empty(len(logits), np.float32)
    step = LogitsStep(1, logits, None, is_fresh=lambda: True, buffer=buffer)
    step.own(router.needs, router.top)
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


@pytest.mark.parametrize(
    ("router", "probabilities", "expected"),
    [
        (MaxProb(), [0.7, 0.2, 0.1], 0.3),
        (Margin(), [0.1, 0.7, 0.2], 0.5),
        # A share of its greatest value.
        (Entropy(), [*[1 / 8] * 8, *[1e-26] * 56], 0.5),
        (Entropy(), [1 / 64] * 64, 1.0),
    ],
)
def test_a_score_by_hand(router: Router, probabilities: list[float], expected: float) -> None:
    logits = np.log(np.array(probabilities, np.float32))
    assert score(router, logits) == pytest.approx(expected, abs=1e-5)
