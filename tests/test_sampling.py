"""Sampling: filters, draws and their dependence on seed and position alone."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from edgewise.edge.step import LogitsStep
from edgewise.errors import UsageError
from edgewise.sampling import Sampling


def step(logits: list[float] | NDArray[np.float32], position: int = 5) -> LogitsStep:
    row = np.array(logits, np.float32)
    return LogitsStep(position, row, None, is_fresh=lambda: True, buffer=np.empty_like(row))


def draws(sampling: Sampling, logits: list[float], count: int = 300) -> set[int]:
    return {sampling.choose(step(logits, position)) for position in range(count)}


def test_filters_keep_what_they_say() -> None:
    logits = [math.log(p) for p in (0.3, 0.5, 0.15, 0.05)]
    assert Sampling().choose(step(logits)) == 1
    assert draws(Sampling(temperature=1.0), logits) == {0, 1, 2, 3}
    assert draws(Sampling(temperature=1.0, top_k=1), logits) == {1}
    assert draws(Sampling(temperature=1.0, top_k=2), logits) == {0, 1}
    assert draws(Sampling(temperature=1.0, top_p=0.75), logits) == {0, 1}
    assert draws(Sampling(temperature=1.0, min_p=0.25), logits) == {0, 1, 2}


def as_written(sampling: Sampling, logits: NDArray[np.float32], position: int) -> int:
    """Temperature, top-k, top-p, min-p and a draw, one after the other; sums in float64."""
    ids = np.argsort(-logits, kind="stable")[: sampling.top_k or None]
    weights = np.exp((logits[ids] - logits.max()) / np.float32(sampling.temperature))
    weights = weights.astype(np.float64)
    if sampling.top_p < 1:
        shares = np.cumsum(weights) / weights.sum()
        weights = weights[: int(np.searchsorted(shares, sampling.top_p)) + 1]
    weights = weights[weights >= sampling.min_p]
    cumulative = np.cumsum(weights)
    draw = np.random.default_rng([sampling.seed, position]).random()
    return int(ids[np.searchsorted(cumulative, draw * cumulative[-1], side="right")])


@pytest.mark.parametrize("size", [4, 300, 5000, 151_936])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"min_p": 0.02}, {"top_k": 400}])
def test_draws_are_what_the_filters_leave(
    size: int, spread: float, filters: dict[str, float]
) -> None:
    """However few ids are looked at."""
    logits = np.random.default_rng(size).normal(0, spread, size).astype(np.float32)
    for temperature in (0.5, 1.0):
        sampling = Sampling(temperature=temperature, seed=7, **filters)  # type: ignore[arg-type]
        for position in range(12):
            taken = sampling.choose(step(logits, position))
            assert taken == as_written(sampling, logits, position)


BAD: list[dict[str, float]] = [
    *({"temperature": -0.1}, {"temperature": math.nan}, {"top_p": 0.0}, {"top_p": 1.5}),
    *({"min_p": 2.0}, {"top_k": -1}, {"seed": -1}),
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_values_are_one_sentence_with_their_setting(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must be") as caught:
        Sampling(**bad)  # type: ignore[arg-type]
    assert [caught.value.setting] == list(bad)


@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12),
    kept=st.sets(st.integers(0, 11), min_size=1),
    more=st.integers(0, 4),
    top_k=st.integers(0, 3),
    top_p=st.sampled_from([1.0, 0.5]),
    temperature=st.sampled_from([0.0, 1.0, 50.0]),
)
def test_only_what_is_allowed_is_chosen(
    logits: list[float], kept: set[int], more: int, top_k: int, top_p: float, temperature: float
) -> None:
    """As if there were no other ids; a vocabulary and the logits may end elsewhere."""
    allowed = np.zeros(len(logits) + more, np.bool_)
    allowed[[token % len(logits) for token in kept]] = True
    ids = np.flatnonzero(allowed)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=3)
    alone = sampling.choose(step([logits[token] for token in ids]))
    assert sampling.choose(step(logits), allowed) == ids[alone]
