"""Figures of a step against plain float64 references, over small and real vocabulary sizes."""

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from edgewise.edge.base import Floats, Needs
from edgewise.edge.step import LogitsStep, top_ids
from edgewise.errors import StaleStepError

VOCABULARIES = [2, 127, 128, 1024, 5000, 16_384, 16_385, 49_152, 151_936]
EVERY = Needs.ENTROPY | Needs.TOP | Needs.LOGITS | Needs.HIDDEN

few_values = st.sampled_from([-3.0, 0.0, 0.5, 7.0])
any_values = st.floats(-1e4, 1e4, width=32)
rows = st.integers(1, 400).flatmap(
    lambda size: arrays(np.float32, size, elements=few_values | any_values)
)


class Engine:
    """Counts decodes, as a backend does."""

    decodes = 0

    def step(
        self,
        logits: Floats,
        *,
        needs: Needs = Needs.NOTHING,
        top: int = 0,
        hidden: Floats | None = None,
    ) -> LogitsStep:
        decode = self.decodes
        buffer, is_fresh = np.empty(len(logits), np.float32), lambda: self.decodes == decode
        step = LogitsStep(3, logits, hidden, is_fresh=is_fresh, buffer=buffer)
        step.own(needs, top)
        return step


def drawn(size: int, *, scale: float = 4.0, seed: int = 0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def reference_logprobs(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    return shifted - np.log(np.exp(shifted).sum())


def reference_entropy(logits: Floats) -> float:
    logprobs = reference_logprobs(logits)
    return float(-(np.exp(logprobs) * logprobs).sum())


def sorted_ids(logits: Floats, k: int) -> list[int]:
    return np.argsort(-logits, kind="stable")[:k].tolist()


@st.composite
def blocks(draw: st.DrawFn) -> Floats:
    """Longer than a block, and with ties."""
    size, seed = draw(st.integers(5000, 9000)), draw(st.integers(0, 1000))
    logits, step = drawn(size, seed=seed), draw(st.sampled_from([0.0, 0.5, 3.0]))
    return (np.round(logits / step) * step).astype(np.float32) if step else logits


@given(logits=rows | blocks(), k=st.integers(1, 12))
def test_top_ids_are_those_of_a_stable_sort(logits: Floats, k: int) -> None:
    assert top_ids(logits, k).tolist() == sorted_ids(logits, k)


class TestFigures:
    @pytest.mark.parametrize("size", VOCABULARIES)
    @pytest.mark.parametrize("scale", [0.0, 0.1, 4.0, 40.0])
    def test_against_float64(self, size: int, scale: float) -> None:
        logits = drawn(size, scale=scale)
        step = Engine().step(logits)
        logprobs = reference_logprobs(logits)
        assert step.entropy == pytest.approx(reference_entropy(logits), abs=2e-4, rel=1e-4)
        for token in (0, size // 2, size - 1, step.proposed):
            assert step.logprob(token) == pytest.approx(logprobs[token], abs=1e-4, rel=1e-5)
        for candidate in step.candidates(5):
            assert candidate.logprob == pytest.approx(logprobs[candidate.id], abs=1e-4, rel=1e-5)

    @given(logits=rows, k=st.integers(1, 8), needs=st.sampled_from([Needs.NOTHING, EVERY]))
    def test_what_is_proposed_comes_first(self, logits: Floats, k: int, needs: Needs) -> None:
        step = Engine().step(logits, needs=needs, top=2, hidden=np.ones(2, np.float32))
        candidates = step.candidates(k)
        assert [c.id for c in candidates] == sorted_ids(logits, k)
        assert candidates[0].id == step.proposed
        assert candidates[0].logprob == step.logprob(step.proposed)

    def test_a_logit_that_is_no_number_leaves_no_figure(self) -> None:
        logits = drawn(20_000)
        logits[17_000] = np.nan
        step = Engine().step(logits)
        assert np.isnan([step.entropy, step.logprob(3)]).all()


@pytest.mark.parametrize(
    ("kept", "lost"),
    [
        (EVERY, None),
        (Needs.ENTROPY, lambda step: step.logits),
        (Needs.TOP, lambda step: step.top(4)),
        (Needs.HIDDEN, lambda step: step.entropy),
        (Needs.LOGITS, lambda step: step.hidden),
    ],
)
def test_what_is_needed_survives_the_next_decode_and_the_rest_does_not(
    kept: Needs, lost: Callable[[LogitsStep], object] | None
) -> None:
    engine, logits, hidden = Engine(), drawn(500), np.arange(4, dtype=np.float32)
    expected = logits.copy(), hidden.copy()
    step = engine.step(logits, needs=kept, top=3, hidden=hidden)
    assert step.is_fresh()
    engine.decodes += 1
    assert not step.is_fresh()
    logits[:], hidden[:] = 0.0, -1.0
    if lost is not None:
        with pytest.raises(StaleStepError, match="needs"):
            lost(step)
        return
    assert np.array_equal(step.logits, expected[0])
    assert np.array_equal(step.hidden, expected[1])
    assert step.entropy == pytest.approx(reference_entropy(expected[0]), abs=1e-4)
    assert step.top(3)[0].tolist() == sorted_ids(expected[0], 3)
    assert len(step.candidates(10)) == 10
