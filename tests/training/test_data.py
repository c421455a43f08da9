"""What a router is fitted to: rows of the inputs asked for, whole texts held out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import UsageError
from edgewise_lab.training.collect import KEPT, Columns
from edgewise_lab.training.fit import Data, data_of, held_out

INPUTS: tuple[str, ...] = ("hidden", "top_logprobs", "scalars")
MARKED = {str(i): [0.0, 0.0, 1.0, 0.0, 0.0] for i in range(4)}


def columns(answers: int = 4, tokens: int = 5) -> Columns:
    rng = np.random.default_rng(0)
    n = answers * tokens
    widths = {"hidden": 4, "top_logprobs": KEPT, "scalars": 4}
    return Columns(
        tuple(str(i) for i in range(answers)),
        np.repeat(np.arange(answers, dtype=np.int32), tokens),
        np.arange(n, dtype=np.int32),
        np.arange(n, dtype=np.int32),
        {name: rng.standard_normal((n, widths[name])).astype(np.float32) for name in widths},
    )


def test_rows_hold_the_inputs_asked_for() -> None:
    inputs: tuple[str, ...] = ("scalars", "top_logprobs")
    data = data_of(columns(), MARKED, inputs=inputs, top_k=3, embeddings=None)
    assert data.inputs.shape == (20, 7)
    assert np.array_equal(data.inputs[:, :4], columns().inputs["scalars"])
    assert list(np.flatnonzero(data.labels)) == [2, 7, 12, 17]


def test_labels_of_other_texts() -> None:
    marked = {str(i): [0.0, 1.0] for i in range(4)}
    with pytest.raises(UsageError, match="labels"):
        data_of(columns(), marked, inputs=INPUTS, top_k=3, embeddings=None)


def test_the_embedding_is_no_column() -> None:
    table = np.zeros((30, 6), np.float32)
    for inputs, width, held in (
        (("token_embedding",), 0, True),
        (("hidden", "token_embedding"), 4, True),
        (("hidden",), 4, False),
    ):
        data = data_of(columns(), MARKED, inputs=inputs, top_k=0, embeddings=table)
        assert data.inputs.shape == (20, width)
        assert (data.embeddings is not None) == held


def labelled(texts: int, tokens: int) -> Data:
    n = texts * tokens
    groups = np.repeat(np.arange(texts, dtype=np.int32), tokens)
    return Data(np.zeros((n, 1), np.float32), np.ones(n, np.float32), groups, np.zeros(n, np.int32))


@given(
    texts=st.integers(2, 40),
    tokens=st.integers(1, 9),
    fraction=st.floats(0.0, 0.9),
    seed=st.integers(0, 5),
)
def test_whole_texts_are_held_out(texts: int, tokens: int, fraction: float, seed: int) -> None:
    data = labelled(texts, tokens)
    mask = held_out(data, fraction, seed)
    apart, kept = set(data.groups[mask]), set(data.groups[~mask])
    assert apart
    assert kept
    assert not apart & kept
    assert len(apart) == max(1, int(fraction * texts))
    assert np.array_equal(mask, held_out(data, fraction, seed))
