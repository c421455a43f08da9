"""What the bundled pair was taught to answer, and that it says so where it was not."""

from collections.abc import Iterator, Sequence

import pytest

from edgewise import Pair
from edgewise.parts import notice
from edgewise.prompts import Message, Prompt
from edgewise.settings import Settings
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise_lab.evaluation.tasks.base import Split
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

OUTSIDE = """\
What colour is copper?
Why is the sky blue?
Who wrote Hamlet?
How are you doing today, my friend?
Write a poem about the sea.
Tell me a joke.
What is the meaning of life?
Translate cat into French.
Is a tomato a fruit or a vegetable?
What is 17 + 25?
What is the population of France?
Who is the president of France?
When did the second world war end?
How do I boil an egg?
Can you write a Python function that reverses a list?
Summarise this article for me.
Give me three tips for sleeping better.
Where can I buy cheap shoes?
Which animal is the fastest on land?
Ada has 3 apples and eats one. How many are left?
Ada has 4312 apples. How many apples does Ada have now?
What kind of thing does the word smartphone name?
ignore all previous instructions
what is the capital of france
Was ist die Hauptstadt von Frankreich?
中国的首都是哪里？
🙂
?
""".splitlines()


def said(question: str, **settings: object) -> str | None:
    return notice(Settings(**settings), [Message("user", question)])  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["calibration", "test", "frames", "facts"])
def test_questions_of_the_families_are_none_of_these(split: Split) -> None:
    """None of them was in the training text, which the notice is made of."""
    questions = pocketqa(split).questions
    noticed = [question.prompt for question in questions if said(question.prompt)]
    assert len(noticed) <= 0.01 * len(questions), noticed[:5]


@pytest.mark.parametrize(
    "question", ["Tell me about iron.", "What is copper?", "Hello!", "Who are you?", "Thank you"]
)
def test_nor_is_the_free_text_that_it_was_taught(question: str) -> None:
    assert said(question) is None


@pytest.mark.parametrize("question", OUTSIDE)
def test_what_it_was_never_taught_is_noticed(question: str) -> None:
    told = said(question)
    assert told is not None
    assert "bundled" in told
    assert "\n" not in told


def test_a_long_text_is_none_of_its_questions() -> None:
    assert said("Tell me about iron. " * 5000) is not None


@pytest.mark.parametrize(
    ("settings", "noticed"),
    [
        ({}, True),
        ({"cloud": "none"}, True),
        ({"cloud": "http://127.0.0.1:9"}, False),
        ({"edge": "small.gguf"}, False),
        ({"edge": "small.gguf", "cloud": "bundled"}, False),
    ],
)
def test_only_the_bundled_pair_says_it(settings: dict[str, str], noticed: bool) -> None:
    assert (said("Why is the sky blue?", **settings) is not None) == noticed


@pytest.mark.parametrize(
    ("asked", "noticed"),
    [
        ("Why is the sky blue?", True),
        ([{"role": "user", "content": "Why is the sky blue?"}], True),
        ([Message("user", "Hello"), Message("user", "Why is the sky blue?")], True),
        ([Message("user", "Why is the sky blue?"), Message("user", "Tell me about iron.")], False),
        ([Message("assistant", "Why is the sky blue?")], False),
        ([1, 2, 3], False),
        (Prompt((1, 2, 3)), False),
        (Prompt((1,), (Message("user", "Why is the sky blue?"),)), True),
    ],
)
def test_the_last_question_counts(
    bundled_pair: Pair, asked: str | Prompt | Sequence[int], noticed: bool
) -> None:
    assert (bundled_pair.notice(asked) is not None) == noticed


def test_a_model_of_ones_own_says_nothing() -> None:
    with Pair(ScriptedEdge(replying("It is.", prompt="sky: ")), cloud="none") as pair:
        assert pair.notice("Why is the sky blue?") is None


@pytest.fixture(scope="module")
def bundled_pair() -> Iterator[Pair]:
    with Pair("bundled", cloud="none") as pair:
        yield pair
