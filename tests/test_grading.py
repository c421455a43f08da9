"""Grading, in the order of the paper."""

import pytest

from edgewise.evaluation.questions import extract_choice
from edgewise.evaluation.statistics import difference_interval

CHOICES = ("bank", "garments", "river bank", "tree")


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("It is cloth. Therefore, the answer is garments (c).", "garments"),
        ("A bank. Therefore, the answer is river bank (c).", "river bank"),
        ("Therefore, the answer is B.", "garments"),
        ("The right one is (d).", "tree"),
        ("B because of cloth", "garments"),
        ("tree, of course", "tree"),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_extraction(text: str, choice: str | None) -> None:
    assert extract_choice(text, CHOICES) == choice


def test_the_interval_of_a_difference() -> None:
    low, high = difference_interval([True] * 60 + [False] * 40, [False] * 100)
    assert low < 0.6 < high
    assert high - low == pytest.approx(0.19, abs=0.03)
    assert difference_interval([True] * 10, [True] * 10) == (0.0, 0.0)
