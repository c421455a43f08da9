"""Grading, in the paper's form and in the chat form: what a reply concludes, and strictly."""

import string

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgewise.errors import UsageError
from edgewise_lab.evaluation.tasks import programs
from edgewise_lab.evaluation.tasks.base import Grading, Question
from edgewise_lab.evaluation.tasks.grading import (
    agreeing,
    extract_choice,
    extract_number,
    is_right,
    is_strictly_right,
    named_choice,
    named_number,
    overlap,
)

CHOICES = ("bank", "garments", "river bank", "tree")
ANIMALS = ("cat", "dog", "emu")
SIGNS = ("C", "C++", ".net")


LIST = "A. complete job B. learn new things C. die D. have fun E. get paid"
JOBS = ("complete job", "learn new things", "die", "have fun", "get paid")
SETS = {"signs": SIGNS, "cloth": CHOICES, "animals": ANIMALS, "jobs": JOBS}


def told(table: str) -> list[tuple[str, str]]:
    """The texts of a table, each with what stands before its line; ⏎ is the end of a line."""
    lines = (line.partition(": ") for line in table.strip().splitlines())
    return [
        (head, text.replace("⏎", "\n")) for head, _, texts in lines for text in texts.split(" | ")
    ]


EXTRACTED = r"""
signs = C++: Therefore, C++ it is.
signs = C: Therefore, C it is.
signs = .net: Therefore: .net | (c)
signs = none: Therefore, the answer is a CC or an internet.
cloth = garments: It is cloth. Therefore, the answer is garments (c). | Therefore, the answer is B.
cloth = garments: B because of cloth
cloth = river bank: A bank. Therefore, the answer is river bank (c).
cloth = tree: The right one is (d). | tree, of course
cloth = none: I do not know. | Therefore, the answer is E. | (f)
animals = cat: emu. (b) Therefore, A, that is cat | emu. (b) Therefore, A.
animals = dog: emu. (b) Therefore, who knows
animals = emu: emu. Therefore, who knows
animals = emu: emu. Therefore, ............................................................ cat
animals = none: so I think it must be a cat
jobs = none: LIST | LIST I would have fun. | A. complete work is what they want
jobs = none: Therefore, A. complete work | A person who works wants to die.
jobs = have fun: LIST (d) | Therefore, B. it says, the answer is D.
jobs = have fun: Therefore, A good worker would have fun.
jobs = learn new things: LIST Therefore, the answer is learn new things (b).
jobs = learn new things: (a) complete job, (b) learn new things or (c) die: (b)
jobs = learn new things: a) Complete job⏎b) Learn new things⏎Therefore, the answer is (b).
jobs = learn new things: Therefore, of A. complete job B. learn new things: B. | B) learn new things
jobs = learn new things: Therefore, A good worker: B. | B because of the work
jobs = learn new things: Therefore, it is B. They like it.
jobs = complete job: A. complete job | A | A. | A is right | A because of the work | Therefore, (A).
jobs = complete job: Therefore, the answer is A | Therefore, the answer is A.
jobs = complete job: Therefore, A: complete job
jobs = get paid: Therefore, the answer is E. get paid
jobs = die: C, since all do.
"""


@pytest.mark.parametrize(("choice", "text"), [("cloth = none", ""), *told(EXTRACTED)])
def test_extraction(choice: str, text: str) -> None:
    """After "Therefore" a text, then a letter; then "(x)" anywhere; then the beginning.

    The choices told once more are no answer. A letter before a phrase that is not its choice's
    text names nothing; an article or a pronoun is no letter.
    """
    name, _, wanted = choice.partition(" = ")
    found = extract_choice(text.replace("LIST", LIST), SETS[name])
    assert found == (None if wanted == "none" else wanted)


def require(question: Question, text: str, right: bool, strict: bool) -> None:
    assert (is_right(question, text), is_strictly_right(question, text)) == (right, strict)


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
    require(question, text, right, strict)


@pytest.mark.deep
def test_a_pattern_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    programs._searches._end()
    with monkeypatch.context() as brief:
        brief.setattr(programs, "_SECONDS", 1.0)
        with pytest.raises(UsageError, match="'slow'"):
            is_right(Question("slow", "f", "", r"(a+)+$", "regex"), "a" * 60 + "!")
    assert is_right(Question("quick", "f", "", "é\n+b", "regex"), "é\n\nb")


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
    choice, number, door, eggs = (
        msgspec.structs.replace(one, answer="", known=False) for one in (CHOICE, NUMBER, DOOR, EGGS)
    )
    assert agreeing(choice, "Therefore, the answer is garments (b).") == CHOICE
    assert agreeing(choice, "I pass.").check == "words"
    assert is_right(agreeing(number, "So it is 1250."), "Well, 1,250.")
    assert agreeing(NUMBER, "7") == NUMBER
    for question, said, other in (
        (door, "I think of shops. Answer: C", "The answer is the department store."),
        (eggs, "Answer: $1,250", "That makes 1250 dollars."),
    ):
        assert is_right(agreeing(question, said), other)
        assert not is_right(agreeing(question, other), "Answer: D, 1251")


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


READ = {"strictly": (True, True), "right": (True, False), "wrong": (False, False)}
CONCLUDED = r"""
strictly: Doors turn in stores.⏎⏎Answer: C | Answer: C. | Answer: (C) | Answer: C) department store
strictly: Answer: C. Department Store. | Answer: C - department store | Answer: department store (C)
strictly: **Answer: C** | **Answer:** C | Answer: **C) department store** | Answer: \boxed{C}
strictly: Answer: $\boxed{\text{C}}$ | ### Answer: C | LISTED⏎⏎Answer: C
right: Answer: c | Answer: department store | answer: C | The answer is (C).
right: The correct answer is C) department store, as they have many visitors.
right: The best answer to this question would be **C**.
right: So the answer is most likely the department store. | Therefore, the answer is option C.
right: The correct choice is C. | **Final Answer**⏎⏎The final answer is $\boxed{C}$. | Answer:⏎⏎C
right: Option C is the most appropriate choice. | Hence (C) department store is correct. | C
right: C. department store⏎⏎Stores have such doors. | **C) department store**
right: They have many visitors, so I choose **C**. | They have many visitors, so (c).
right: It is a department store. | Answer: B⏎No, wait.⏎Answer: C
right: The answer is B. On second thought, the answer is C. | Answer: C⏎⏎That was the letter.
right: Answer: A department store | The answer is a department store.
right: A department store has such doors. | The answer is "a department store".
right: The answer is 'a department store'. | Answer: [C] | Answer: {C} | Answer: 'C'
right: Answer: Option C | The answer is Choice C. | Answer: The department store
right: The answer is C.⏎⏎The choices were:⏎LISTED
wrong: Answer: C⏎No, wait.⏎Answer: B | Answer: B or C | Answer: C, D | Answer: C) mall
wrong: Answer: D) department store | Answer: mall (C) | The answer is a mall.
wrong: A person is the answer. | LISTED | A bank has one door.⏎**C)** A store⏎**D)** A mall
wrong: The answer is not C, and not D. | It depends. | Answer: | Answer: X
"""


@pytest.mark.parametrize(("read", "text"), [("wrong", ""), *told(CONCLUDED)])
def test_choices(read: str, text: str) -> None:
    """Of two conclusions the last counts, and strictly none. A letter may be a word."""
    require(DOOR, text.replace("LISTED", LISTED), *READ[read])


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
    require(Question("q", "f", asked, answer, "choice", choices=choices), text, right, strict)


COUNTED = r"""
strictly 18: 16 - 7 = 9 eggs, 9 * 2 = 18.⏎Answer: 18 | Answer: 18. | Answer: $18.00
strictly 18: **Answer: $18** | Answer: \boxed{18} | Answer: $\boxed{18}$ | **Answer**: 18
strictly 20: Answer: 20%
strictly 1000: Answer: 1,000
strictly 1,000: Answer: 1000
strictly -5: Answer: -5 | Answer: -$5
strictly 0.5: Answer: 1/2 | Answer: \boxed{\frac{1}{2}}
strictly 2.5: Answer: 2.50
strictly 3.5: Answer: 3 1/2
strictly 0.75: Answer: 3 / 4
right 18: Answer: 18 dollars | Answer: She makes $18 every day.
right 18: Answer: 9 * 2 = 18 dollars for 9 eggs | **Final Answer**⏎⏎18 dollars, for 7 days
right 18: The answer is $18.00, so 3 times 6. | So \[ \boxed{18 \text{ dollars}} \] for 9 eggs.
right 18: 16 - 7 = 9, times 2.⏎#### 18 | #### 1. The eggs⏎16 - 7 = 9⏎#### 2. The money⏎That is 18.
right 18: To answer this we need 3 steps. She makes $18. | She makes **$18**.
right 18: She makes $18 (9 x 2). | Answer: 18 (36 / 2) | For 2 weeks (9 * 2 = 18).
right 18: Answer: 17⏎No.⏎Answer: 18 | Answer: 18⏎⏎This is for 7 days.
right 18000: She has \boxed{18{,}000}. | She has $18\,000$.
right 0.75: Three of 4 parts (3/4). | Of 4 balls, 3 are red. So:⏎⏎**Answer:** (3 / 4)
right 3/4: Answer: (3 / 4) | The probability is (3 / 4).
right 0.67: That makes 0.67 (2 / 3).
right 9: It is 16-7 = 9
right 7: Of 16-7
wrong 18: She makes $18 (2 of 9). | Answer: 18⏎No.⏎Answer: 17 | Answer: 1 8 | Answer: 2*9
wrong 18: Answer: 180 | Answer: -18 | Answer: 18.5 | Answer: 1/18 | Answer: eighteen | Answer: x18
wrong 5: Answer: 10/0
"""


@pytest.mark.parametrize(
    ("read", "text"), [("wrong 18", ""), ("wrong 18", "18" * 5000), *told(COUNTED)]
)
def test_numbers(read: str, text: str) -> None:
    """What a number was made of is no conclusion; a fraction or a result may be one."""
    way, _, answer = read.partition(" ")
    require(priced(answer), text, *READ[way])


@given(st.integers(-(10**9), 10**9), st.sampled_from(["", "$", "**", "\\boxed{"]))
def test_a_number_is_itself_however_it_is_written(number: int, mark: str) -> None:
    """In the chat form, and in the paper's."""
    end = {"\\boxed{": "}", "**": "**"}.get(mark, "")
    for written in (f"{number}", f"{number:,}", f"{number}.00"):
        for prompt, said in (
            (EGGS.prompt, f"7 and 8 make 15.\nAnswer: {mark}{written}{end}"),
            ("", f"Therefore, the answer is {written}."),
        ):
            require(priced(str(number), prompt), said, True, True)
            require(priced(str(number + 1), prompt), said, False, False)


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
    # In the paper's form too.
    assert extract_choice(text, CHOICES) in (*CHOICES, None)
    assert extract_choice(f"Therefore, {text} tree", CHOICES) in (*CHOICES, None)
