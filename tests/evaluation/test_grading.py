"""Grading, in the order of the paper."""

import pytest

from edgewise.evaluation.questions import extract_choice

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
