"""Grading in the chat form: what a reply concludes, however a model writes it."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import (
    agreeing,
    is_right,
    is_strictly_right,
    named_choice,
    named_number,
)
from tests.evaluation.test_grading import CHOICE, NUMBER, UNLETTERED

PLACES = ("bank", "library", "department store", "mall", "new york")
LISTED = "\n".join(f"{letter}) {text}" for letter, text in zip("ABCDE", PLACES, strict=True))
DOOR = Question(
    "door",
    "f",
    f'Where is a revolving door?\n{LISTED}\n\nEnd with "Answer: X", X being the letter.',
    "department store",
    "choice",
    choices=PLACES,
)
EGGS = Question(
    "eggs", "f", 'How much?\n\nThink, and end with "Answer: NUMBER".', "1,250", "number"
)


def priced(answer: str, prompt: str = EGGS.prompt) -> Question:
    return Question("q", "f", prompt, answer, "number")


@pytest.mark.parametrize(
    ("text", "right", "strict"),
    [
        ("Doors turn in stores.\n\nAnswer: C", True, True),
        ("Answer: C.", True, True),
        ("Answer: (C)", True, True),
        ("Answer: C) department store", True, True),
        ("Answer: C. Department Store.", True, True),
        ("Answer: C - department store", True, True),
        ("Answer: department store (C)", True, True),
        ("**Answer: C**", True, True),
        ("**Answer:** C", True, True),
        ("Answer: **C) department store**", True, True),
        (r"Answer: \boxed{C}", True, True),
        (r"Answer: $\boxed{\text{C}}$", True, True),
        ("### Answer: C", True, True),
        ("Answer: c", True, False),
        ("Answer: department store", True, False),
        ("answer: C", True, False),
        ("The answer is (C).", True, False),
        ("The correct answer is C) department store, as they have many visitors.", True, False),
        ("The best answer to this question would be **C**.", True, False),
        ("So the answer is most likely the department store.", True, False),
        ("Therefore, the answer is option C.", True, False),
        ("The correct choice is C.", True, False),
        ("**Final Answer**\n\nThe final answer is $\\boxed{C}$.", True, False),
        ("Answer:\n\nC", True, False),
        ("Option C is the most appropriate choice.", True, False),
        ("Hence (C) department store is correct.", True, False),
        ("C", True, False),
        ("C. department store\n\nStores have such doors.", True, False),
        ("**C) department store**", True, False),
        ("They have many visitors, so I choose **C**.", True, False),
        ("They have many visitors, so (c).", True, False),
        ("It is a department store.", True, False),
        # Two conclusions: the last counts, and strictly none.
        ("Answer: B\nNo, wait.\nAnswer: C", True, False),
        ("Answer: C\nNo, wait.\nAnswer: B", False, False),
        ("The answer is B. On second thought, the answer is C.", True, False),
        ("Answer: C\n\nThat was the letter.", True, False),
        ("Answer: B or C", False, False),
        ("Answer: C, D", False, False),
        # A letter and a text that do not agree.
        ("Answer: C) mall", False, False),
        ("Answer: D) department store", False, False),
        ("Answer: mall (C)", False, False),
        # A letter that is a word.
        ("Answer: A department store", True, False),
        ("The answer is a department store.", True, False),
        ("A department store has such doors.", True, False),
        ("The answer is a mall.", False, False),
        ('The answer is "a department store".', True, False),
        ("The answer is 'a department store'.", True, False),
        ("A person is the answer.", False, False),
        # However the letter is wrapped.
        ("Answer: [C]", True, False),
        ("Answer: {C}", True, False),
        ("Answer: 'C'", True, False),
        ("Answer: Option C", True, False),
        ("The answer is Choice C.", True, False),
        ("Answer: The department store", True, False),
        # The choices told once more.
        (f"The answer is C.\n\nThe choices were:\n{LISTED}", True, False),
        (f"{LISTED}\n\nAnswer: C", True, True),
        (LISTED, False, False),
        ("A bank has one door.\n**C)** A store\n**D)** A mall", False, False),
        ("The answer is not C, and not D.", False, False),
        ("It depends.", False, False),
        ("Answer:", False, False),
        ("Answer: X", False, False),
        ("", False, False),
    ],
)
def test_choices(text: str, right: bool, strict: bool) -> None:
    assert (is_right(DOOR, text), is_strictly_right(DOOR, text)) == (right, strict)


@pytest.mark.parametrize("letter", "ABC")
@pytest.mark.parametrize(
    "text",
    [
        "The answer is {}) {}.",
        "Final answer: {}) {}",
        "**{}) {}**",
        "Answer:\n{}) {}",
        "Answer: {}) {}\n\nThe rest do not fit.",
        "At first glance the answer is D. But the answer is {}) {}.",
        "Answer: Option {}",
        "Answer: [{}]",
    ],
)
def test_a_label_is_no_article(letter: str, text: str) -> None:
    """A bracket behind it tells "A) river" from "a river"."""
    assert DOOR.choices is not None
    choice = DOOR.choices["ABC".index(letter)]
    asked = msgspec.structs.replace(DOOR, answer=choice)
    assert is_right(asked, text.format(letter, choice))


@pytest.mark.parametrize(
    ("choices", "answer", "text", "right", "strict"),
    [
        (("bank", "mall"), "mall", "Answer: mall", True, True),
        (("bank", "mall"), "mall", "Answer: Mall.", True, True),
        (("bank", "mall"), "mall", "Answer: bank", False, False),
        (("bank", "river bank"), "river bank", "The answer is the river bank.", True, False),
        (("bank", "river bank"), "bank", "The answer is the river bank.", False, False),
        (("C", "C++", ".net"), "C++", "Answer: C++", True, True),
        (("$5", "5"), "$5", "Answer: $5", True, True),
    ],
)
def test_choices_without_letters(
    choices: tuple[str, ...], answer: str, text: str, right: bool, strict: bool
) -> None:
    asked = 'Which one? End with "Answer: X".'
    question = Question("q", "f", asked, answer, "choice", choices=choices)
    assert (is_right(question, text), is_strictly_right(question, text)) == (right, strict)


@pytest.mark.parametrize(
    ("answer", "text", "right", "strict"),
    [
        ("18", "16 - 7 = 9 eggs, 9 * 2 = 18.\nAnswer: 18", True, True),
        ("18", "Answer: 18.", True, True),
        ("18", "Answer: $18.00", True, True),
        ("18", "**Answer: $18**", True, True),
        ("18", r"Answer: \boxed{18}", True, True),
        ("18", r"Answer: $\boxed{18}$", True, True),
        ("20", "Answer: 20%", True, True),
        ("1000", "Answer: 1,000", True, True),
        ("1,000", "Answer: 1000", True, True),
        ("-5", "Answer: -5", True, True),
        ("-5", "Answer: -$5", True, True),
        ("0.5", "Answer: 1/2", True, True),
        ("0.5", r"Answer: \boxed{\frac{1}{2}}", True, True),
        ("2.5", "Answer: 2.50", True, True),
        ("3.5", "Answer: 3 1/2", True, True),
        ("18", "Answer: 18 dollars", True, False),
        ("18", "Answer: She makes $18 every day.", True, False),
        ("18", "Answer: 9 * 2 = 18 dollars for 9 eggs", True, False),
        ("18", "**Answer**: 18", True, True),
        ("18", "**Final Answer**\n\n18 dollars, for 7 days", True, False),
        ("18", "The answer is $18.00, so 3 times 6.", True, False),
        ("18", r"So \[ \boxed{18 \text{ dollars}} \] for 9 eggs.", True, False),
        ("18000", r"She has \boxed{18{,}000}.", True, False),
        ("18000", r"She has $18\,000$.", True, False),
        ("18", "16 - 7 = 9, times 2.\n#### 18", True, False),
        ("18", "#### 1. The eggs\n16 - 7 = 9\n#### 2. The money\nThat is 18.", True, False),
        ("18", "To answer this we need 3 steps. She makes $18.", True, False),
        ("18", "She makes **$18**.", True, False),
        # What a number was made of is no conclusion; a fraction or a result may be one.
        ("18", "She makes $18 (9 x 2).", True, False),
        ("18", "She makes $18 (2 of 9).", False, False),
        ("0.75", "Three of 4 parts (3/4).", True, False),
        ("3/4", "Answer: (3 / 4)", True, False),
        ("3/4", "The probability is (3 / 4).", True, False),
        ("0.75", "Of 4 balls, 3 are red. So:\n\n**Answer:** (3 / 4)", True, False),
        ("0.75", "Answer: 3 / 4", True, True),
        ("18", "Answer: 18 (36 / 2)", True, False),
        ("0.67", "That makes 0.67 (2 / 3).", True, False),
        ("18", "For 2 weeks (9 * 2 = 18).", True, False),
        ("9", "It is 16-7 = 9", True, False),
        ("7", "Of 16-7", True, False),
        ("18", "Answer: 17\nNo.\nAnswer: 18", True, False),
        ("18", "Answer: 18\nNo.\nAnswer: 17", False, False),
        ("18", "Answer: 18\n\nThis is for 7 days.", True, False),
        ("18", "Answer: 1 8", False, False),
        ("18", "Answer: 2*9", False, False),
        ("18", "Answer: 180", False, False),
        ("18", "Answer: -18", False, False),
        ("18", "Answer: 18.5", False, False),
        ("18", "Answer: 1/18", False, False),
        ("18", "Answer: eighteen", False, False),
        ("18", "Answer: x18", False, False),
        ("5", "Answer: 10/0", False, False),
        ("18", "18" * 5000, False, False),
        ("18", "", False, False),
    ],
)
def test_numbers(answer: str, text: str, right: bool, strict: bool) -> None:
    question = priced(answer)
    assert (is_right(question, text), is_strictly_right(question, text)) == (right, strict)


@given(st.integers(-(10**9), 10**9), st.sampled_from(["", "$", "**", "\\boxed{"]))
def test_a_number_is_itself_however_it_is_written(number: int, mark: str) -> None:
    """In the chat form, and in the paper's."""
    end = {"\\boxed{": "}", "**": "**"}.get(mark, "")
    for written in (f"{number}", f"{number:,}", f"{number}.00"):
        for prompt, said in (
            (EGGS.prompt, f"7 and 8 make 15.\nAnswer: {mark}{written}{end}"),
            ("", f"Therefore, the answer is {written}."),
        ):
            assert is_right(priced(str(number), prompt), said)
            assert is_strictly_right(priced(str(number), prompt), said)
            assert not is_right(priced(str(number + 1), prompt), said)


REPLIES = st.lists(
    st.sampled_from([*"ABCDE", *PLACES, "Answer:", "answer is", *"().,*$\n -", "a", "18", "or"])
).map(" ".join) | st.text(max_size=60)


@given(REPLIES)
@example("Answer: $")
def test_whatever_is_strictly_right_is_right(text: str) -> None:
    for said in (text, f"Answer: {text}"):
        for question in (DOOR, EGGS, priced("18"), CHOICE, UNLETTERED, NUMBER):
            assert is_strictly_right(question, said) <= is_right(question, said)


@given(REPLIES)
def test_a_conclusion_is_a_choice_and_a_last_line_decides(text: str) -> None:
    assert named_choice(DOOR, text) in (*PLACES, None)
    assert named_choice(DOOR, f"{text}\nAnswer: D) mall") == "mall"
    assert named_number(EGGS, f"{text}\nAnswer: 18 dollars") == "18"


def test_the_clouds_conclusion_is_the_answer_where_none_is_known() -> None:
    for question, said, other in (
        (DOOR, "I think of shops. Answer: C", "The answer is the department store."),
        (EGGS, "Answer: $1,250", "That makes 1250 dollars."),
    ):
        unknown = msgspec.structs.replace(question, answer="", known=False)
        assert is_right(agreeing(unknown, said), other)
        assert not is_right(agreeing(unknown, other), "Answer: D, 1251")
