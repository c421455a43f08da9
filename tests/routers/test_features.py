"""LogTokU, an input of trained routers, is what its formula says."""

import math

import hypothesis.strategies as st
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

from edgewise.edge.base import Floats
from edgewise.routers.features import EVIDENCE, digamma, logtoku

logits = arrays(
    np.float32,
    EVIDENCE,
    elements=st.sampled_from([-2.0, 0.0, 1.0, 30.0]) | st.floats(-1e4, 1e4, width=32),
)


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
