"""The checkpoint on disk, and what its card says to people."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from edgewise.routers.card import WEIGHTS, RouterCard, read_card
from edgewise_lab.evaluation.tasks.base import TRAINED_ON
from edgewise_lab.training.publish import isotonic, save_card, save_weights

CARD = RouterCard(
    kind="mlp",
    edge_fingerprint="0123456789abcdef0123",
    tokenizer_fingerprint="fedcba9876543210ffff",
    hidden_size=4,
    inputs=("hidden", "scalars"),
    thresholds={"0.05": 0.75},
    trained_on="sums, 20 questions",
    label="value of a consult",
    calibrated_on="sums, 4 other questions",
    probability=((0.0, 0.0), (0.5, 0.2), (1.0, 0.6)),
)


ROW = st.tuples(st.floats(0, 1, width=32), st.sampled_from([0.0, 0.25, 1.0]))


@given(st.lists(ROW, min_size=1, max_size=40))
def test_a_card_takes_whatever_knots_come_out(rows: list[tuple[float, float]]) -> None:
    """They ascend from 0 to 1, keep the mean, and fit no worse than any constant."""
    scores, labels = (np.array(column, np.float32) for column in zip(*rows, strict=True))
    knots = isotonic(scores, labels)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(knots))
    assert all(0 <= value <= 1 for knot in knots for value in knot)
    assert (knots[0][0], knots[-1][0]) == (scores.min(), scores.max())
    assert knots[0][1] - 1e-6 <= labels.mean() <= knots[-1][1] + 1e-6


def test_knots_by_hand() -> None:
    """0.9 before 0.1 pools into 0.5; what ascends already stays."""
    scores = np.array([0.4, 0.1, 0.3, 0.2], np.float32)
    labels = np.array([1.0, 0.0, 0.1, 0.9], np.float32)
    found = np.array(isotonic(scores, labels))
    assert found == pytest.approx(np.array([(0.1, 0.0), (0.2, 0.5), (0.3, 0.5), (0.4, 1.0)]))


def test_weights_come_with_what_they_were_fitted_to(tmp_path: Path) -> None:
    tensors = {"weights": np.arange(3, dtype=np.float32)}
    save_weights(tmp_path / "router", tensors, ["b", "a", "a"])
    assert np.array_equal(load_file(tmp_path / "router" / WEIGHTS)["weights"], tensors["weights"])
    lines = (tmp_path / "router" / TRAINED_ON).read_text().splitlines()
    assert (len(lines), lines) == (2, sorted(lines))
    assert all(len(line) == 16 for line in lines)


def test_a_card_is_there_whole_or_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_card(tmp_path, CARD)

    def cut(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        save_card(tmp_path, msgspec.structs.replace(CARD, thresholds={}))
    assert read_card(tmp_path) == CARD


@pytest.mark.parametrize(
    ("more", "warning"),
    [
        ({}, None),
        ({"loss": 0.1357, "baseline_loss": 0.1358}, None),
        ({"loss": 0.255, "baseline_loss": 0.136}, "no better than a constant: its loss on texts"),
        ({"loss": 0.136, "baseline_loss": 0.136}, "no better than a constant"),
        ({"realised": {"0.05": (0.0451, 0.03, 0.06)}}, None),
        (
            {"realised": {"0.05": (0.021, 0.014, 0.03)}},
            "The share 5.0% is missed: its threshold realised 2.1% (1.4% to 3.0%)",
        ),
        ({"realised": {"0.05": (0.0551, 0.04, 0.07)}}, "realised 5.5%"),
    ],
)
def test_people_are_told_what_speaks_against_it(
    tmp_path: Path, more: dict[str, Any], warning: str | None
) -> None:
    card = msgspec.structs.replace(CARD, **more)
    save_card(tmp_path, card)
    told = read_card(tmp_path).warnings()
    assert told == card.warnings()
    assert len(told) == (warning is not None)
    assert (warning or "") in " ".join(told)
