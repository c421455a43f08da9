"""Grading: in the order of the paper, and strictly."""

import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import UsageError
from edgewise_lab.evaluation.tasks.base import Grading, Question
from edgewise_lab.evaluation.tasks.grading import (
    agreeing,
    extract_choice,
    extract_number,
    is_right,
    is_strictly_right,
    overlap,
)

CHOICES = ("bank", "garments", "river bank", "tree")
ANIMALS = ("cat", "dog", "emu")
SIGNS = ("C", "C++", ".net")


@pytest.mark.parametrize(
    ("choices", "text", "choice"),
    [
        (SIGNS, "Therefore, C++ it is.", "C++"),
        (SIGNS, "Therefore, C it is.", "C"),
        (SIGNS, "Therefore: .net", ".net"),
        (SIGNS, "(c)", ".net"),
        (SIGNS, "Therefore, the answer is a CC or an internet.", None),
        (CHOICES, "It is cloth. Therefore, the answer is garments (c).", "garments"),
        (CHOICES, "A bank. Therefore, the answer is river bank (c).", "river bank"),
        (CHOICES, "Therefore, the answer is B.", "garments"),
        (CHOICES, "The right one is (d).", "tree"),
        (CHOICES, "B because of cloth", "garments"),
        (CHOICES, "tree, of course", "tree"),
        (CHOICES, "I do not know.", None),
        (CHOICES, "Therefore, the answer is E.", None),
        (CHOICES, "(f)", None),
        (CHOICES, "", None),
        # After "Therefore" a text, then a letter; then "(x)" anywhere; then the beginning.
        (ANIMALS, "emu. (b) Therefore, A, that is cat", "cat"),
        (ANIMALS, "emu. (b) Therefore, A.", "cat"),
        (ANIMALS, "emu. (b) Therefore, who knows", "dog"),
        (ANIMALS, "emu. Therefore, who knows", "emu"),
        (ANIMALS, f"emu. Therefore, {'.' * 60} cat", "emu"),
        (ANIMALS, "so I think it must be a cat", None),
    ],
)
def test_extraction(choices: tuple[str, ...], text: str, choice: str | None) -> None:
    assert extract_choice(text, choices) == choice


CHOICE = Question(
    "q",
    "f",
    "What is cloth for? Choices: A. bank B. garments C. river bank D. tree",
    "garments",
    "choice",
    choices=CHOICES,
)
BRACKETED = msgspec.structs.replace(
    CHOICE, prompt="Cloth?\n(A) bank\n(B) garments\n(C) river bank\n(D) tree"
)
UNLETTERED = msgspec.structs.replace(
    CHOICE, prompt="Is cloth for a bank, garments, river bank, tree? Answer A. Garments? B. Bank?"
)
NUMBER = Question("q", "f", "", "1,250", "number")


@pytest.mark.parametrize(
    ("question", "text", "right", "strict"),
    [
        (CHOICE, "Cloth. Therefore, the answer is garments (b).", True, True),
        (CHOICE, "Cloth. Therefore, the answer is garments (c).", True, False),
        (CHOICE, "It must be (b).", True, False),
        (CHOICE, 2 * "Therefore, the answer is garments (b).\n", True, False),
        (CHOICE, "Therefore, the answer is garments.", True, False),
        (BRACKETED, "Therefore, the answer is garments (b).", True, True),
        (BRACKETED, "Therefore, the answer is garments.", True, False),
        (UNLETTERED, "Cloth. Therefore, the answer is Garments.", True, True),
        (UNLETTERED, "Therefore, the answer is garments (b).", True, False),
        (UNLETTERED, "Therefore, the answer is garments or tree.", True, False),
        (UNLETTERED, "Therefore, the answer is tree.", False, False),
        (CHOICE, "Therefore, the answer is tree (d).", False, False),
        (NUMBER, "1200 + 50 = 1250. Therefore, the answer is 1250.", True, True),
        (NUMBER, "Therefore, the answer is $1,250.00.", True, True),
        (NUMBER, "It is 1250", True, False),
        (NUMBER, "Therefore, the answer is 1250 or 1300.", True, False),
        (NUMBER, "Therefore, the answer is -1250.", False, False),
        (Question("q", "f", "In France?", "Paris", "contains"), "paris, France.", True, True),
        (Question("q", "f", "", "Paris", "contains"), "It is Paris, on the Seine.", True, False),
        (Question("q", "f", "", "Paris", "contains"), "It is Parisian.", False, False),
        (Question("q", "f", "", "1,000 cats", "contains"), "1000 dogs", False, False),
        (Question("q", "f", "Sun or moon?", "the sun", "contains"), "The moon.", False, False),
        (Question("q", "f", "Sun or moon?", "the sun", "words"), "The moon.", False, False),
        (Question("q", "f", "", "It is.", "contains"), "It is.", True, True),
        (Question("q", "f", "", "yes", "exact"), " yes\n", True, True),
        (Question("q", "f", "", "yes", "exact"), "yes!", False, False),
        (Question("q", "f", "", r"\bcats?\b", "regex"), "two cats", True, True),
        (Question("q", "f", "", r"\bcats?\b", "regex"), "concatenate", False, False),
    ],
)
def test_two_readings(question: Question, text: str, right: bool, strict: bool) -> None:
    assert (is_right(question, text), is_strictly_right(question, text)) == (right, strict)


@pytest.mark.deep
def test_a_pattern_that_never_ends_is_refused() -> None:
    with pytest.raises(UsageError, match="'slow'"):
        is_right(Question("slow", "f", "", r"(a+)+$", "regex"), "a" * 60 + "!")
    assert is_right(Question("quick", "f", "", "é\n+b", "regex"), "é\n\nb")


JOBS = ("complete job", "learn new things", "die", "have fun", "get paid")
LIST = "A. complete job B. learn new things C. die D. have fun E. get paid"


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        # The choices told once more are no answer, wherever they stand.
        (LIST, None),
        (f"{LIST} I would have fun.", None),
        (f"{LIST} (d)", "have fun"),
        (f"{LIST} Therefore, the answer is learn new things (b).", "learn new things"),
        ("(a) complete job, (b) learn new things or (c) die: (b)", "learn new things"),
        ("a) Complete job\nb) Learn new things\nTherefore, the answer is (b).", "learn new things"),
        ("Therefore, of A. complete job B. learn new things: B.", "learn new things"),
        # A single one, by its letter and its own text, is.
        ("A. complete job", "complete job"),
        ("B) learn new things", "learn new things"),
        ("Therefore, the answer is E. get paid", "get paid"),
        # A letter before a phrase that is not its choice's text names nothing.
        ("A. complete work is what they want", None),
        ("Therefore, A. complete work", None),
        ("Therefore, B. it says, the answer is D.", "have fun"),
        # An article or a pronoun is no letter.
        ("A person who works wants to die.", None),
        ("Therefore, A good worker would have fun.", "have fun"),
        ("Therefore, A good worker: B.", "learn new things"),
        # A letter as such.
        ("A", "complete job"),
        ("A.", "complete job"),
        ("A is right", "complete job"),
        ("A because of the work", "complete job"),
        ("B because of the work", "learn new things"),
        ("Therefore, (A).", "complete job"),
        ("Therefore, the answer is A", "complete job"),
        ("Therefore, the answer is A.", "complete job"),
        ("Therefore, A: complete job", "complete job"),
        ("Therefore, it is B. They like it.", "learn new things"),
        ("C, since all do.", "die"),
    ],
)
def test_a_letter_names_a_choice_as_such_only(text: str, choice: str | None) -> None:
    assert extract_choice(text, JOBS) == choice


@pytest.mark.parametrize("count", [1, 2, 10, 11, 26])
def test_as_many_choices_as_there_are_letters(count: int) -> None:
    choices = tuple(f"thing{i}" for i in range(count))
    listed = " ".join(f"{x}. {c}" for x, c in zip(string.ascii_uppercase, choices, strict=False))
    question = Question("q", "f", listed, choices[-1], "choice", choices=choices)
    letter = string.ascii_lowercase[count - 1]
    assert is_strictly_right(question, f"Therefore, the answer is {choices[-1]} ({letter}).")
    assert not is_strictly_right(question, f"Therefore, the answer is {choices[-1]} (z ).")
    assert is_right(question, f"I say ({letter}), of course")


@pytest.mark.parametrize(
    ("answer", "check", "choices", "problem"),
    [
        ("emu", "choice", ("cat", "dog"), "of its choices"),
        ("emu", "choice", None, "of its choices"),
        ("emu", "choice", (), "of its choices"),
        ("c0", "choice", tuple(f"c{i}" for i in range(27)), "has 27 choices; give at most 26"),
        ("(", "regex", None, "regular expression"),
    ],
)
def test_a_question_that_cannot_be_graded(
    answer: str, check: Grading, choices: tuple[str, ...] | None, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        Question("q", "f", "", answer, check, choices=choices)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the answer is $1,250.50, not 3", "1,250.50"),
        ("3 and 4 make 7", "7"),
        ("-3", "-3"),
        ("from 2 to 5.", "5"),
        ("none", None),
        ("", None),
    ],
)
def test_the_number_that_an_answer_names(text: str, number: str | None) -> None:
    assert extract_number(text) == number


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("It is a red rose.", "A rose is red!", 1.0),
        ("Roses grow in 1,000 gardens.", "They grow in 1000 gardens", 0.75),
        ("Which is it?", "It is which.", 1.0),  # nothing that the prompt does not say
        ("Yes.", "No.", 0.0),
    ],
)
def test_content_words_in_common(one: str, other: str, shared: float) -> None:
    question = Question("q", "f", "Which flower is it?", "", "words", known=False)
    assert overlap(question, one, other) == shared
    judged = agreeing(question, one)
    assert (is_right(judged, other), is_right(question, other)) == (shared >= 0.5, False)
    assert is_strictly_right(judged, other) == (shared == 1)


def test_the_clouds_conclusion_is_the_answer_where_none_is_known() -> None:
    choice = msgspec.structs.replace(CHOICE, answer="", known=False)
    assert agreeing(choice, "Therefore, the answer is garments (b).") == CHOICE
    assert agreeing(choice, "I pass.").check == "words"
    number = msgspec.structs.replace(NUMBER, answer="", known=False)
    assert is_right(agreeing(number, "So it is 1250."), "Well, 1,250.")
    assert agreeing(NUMBER, "7") == NUMBER


@given(st.text(max_size=60))
def test_a_choice_is_one_of_them(text: str) -> None:
    assert extract_choice(text, CHOICES) in (*CHOICES, None)
    assert extract_choice(f"Therefore, {text} tree", CHOICES) in (*CHOICES, None)
