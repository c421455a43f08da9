"""Grading: in the order of the paper, and strictly."""

import pytest

from edgewise.evaluation.tasks.base import Question
from edgewise.evaluation.tasks.grading import extract_choice, is_right, is_strictly_right

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


CHOICE = Question("q", "f", "", "garments", "choice", choices=CHOICES)
NUMBER = Question("q", "f", "", "1,250", "number")


@pytest.mark.parametrize(
    ("question", "text", "right", "strict"),
    [
        (CHOICE, "Cloth. Therefore, the answer is garments (b).", True, True),
        (CHOICE, "Cloth. Therefore, the answer is garments (c).", True, False),
        (CHOICE, "It must be (b).", True, False),
        (CHOICE, "Therefore, the answer is tree (d).", False, False),
        (NUMBER, "1200 + 50 = 1250. Therefore, the answer is 1250.", True, True),
        (NUMBER, "Therefore, the answer is $1,250.00.", True, True),
        (NUMBER, "It is 1250", True, False),
        (NUMBER, "Therefore, the answer is 1250 or 1300.", True, False),
        (NUMBER, "Therefore, the answer is -1250.", False, False),
        (Question("q", "f", "", "yes", "exact"), " yes\n", True, True),
        (Question("q", "f", "", "yes", "exact"), "yes!", False, False),
        (Question("q", "f", "", r"\bcats?\b", "regex"), "two cats", True, True),
        (Question("q", "f", "", r"\bcats?\b", "regex"), "concatenate", False, False),
    ],
)
def test_two_readings(question: Question, text: str, right: bool, strict: bool) -> None:
    assert (is_right(question, text), is_strictly_right(question, text)) == (right, strict)
