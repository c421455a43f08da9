"""Signals: one value in one list is an input; LogTokU is what its formula says."""

import math

import hypothesis.strategies as st
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

from edgewise.edge.base import Floats, Needs, Step
from edgewise.errors import UsageError
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
def test_it_lies_between_0_and_1(logits: Floats) -> None:
    assert 0.0 <= logtoku(logits) <= 1.0


@given(logits=logits.filter(lambda row: bool((row > 0).any())))
def test_it_follows_the_paper(logits: Floats) -> None:
    best = [max(float(x), 0.0) for x in logits]
    total = math.fsum(best)
    aleatoric = -sum(
        x / total * float(mpmath.digamma(x + 1) - mpmath.digamma(total + 1)) for x in best
    )
    expected = aleatoric / math.log(EVIDENCE) * EVIDENCE / (total + EVIDENCE)
    assert logtoku(logits) == pytest.approx(expected, abs=1e-8)


def test_little_evidence_is_above_much() -> None:
    many = np.array([20.0, 17.0, *[1.0] * 8], np.float32)
    assert logtoku(many) < logtoku(many / np.float32(10.0))
    assert logtoku(np.full(EVIDENCE, -1.0, np.float32)) == 1.0


@given(x=st.floats(1e-3, 1e6))
def test_digamma(x: float) -> None:
    expected = float(mpmath.digamma(x))
    assert digamma(np.array([x]))[0] == pytest.approx(expected, abs=1e-9, rel=1e-9)
