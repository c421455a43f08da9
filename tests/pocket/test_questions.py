"""The frozen questions are disjoint from the training questions."""

from random import Random

from edgewise.evaluation.questions import is_right, pocketqa
from pocket.facts import Fact
from pocket.questions import Distractors, fact_question, reserved, step_question

QUESTIONS = [*pocketqa("calibration"), *pocketqa("test")]
FACTS = [Fact("kind", f"thing{i}", f"class{i % 9}", "group") for i in range(50)]


def test_every_frozen_prompt_is_reserved() -> None:
    assert len(QUESTIONS) >= 800
    assert all(reserved(question.prompt) for question in QUESTIONS)


def test_no_prompt_appears_twice() -> None:
    assert len({question.prompt for question in QUESTIONS}) == len(QUESTIONS)


def test_generated_prompts_are_reserved_at_the_stated_rate() -> None:
    rng = Random(0)
    wrong = Distractors(FACTS)
    prompts = [fact_question(f, wrong.draw(f, rng), rng).prompt for f in FACTS * 20]
    prompts += [step_question(rng).prompt for _ in range(3000)]
    rate = sum(map(reserved, prompts)) / len(prompts)
    assert 1 / 32 < rate < 1 / 10


def test_every_reference_is_graded_right() -> None:
    assert all(is_right(question, question.reference) for question in QUESTIONS)


def test_distractors_are_never_true() -> None:
    rng = Random(1)
    fact = Fact("kind", "x", "class0", "group", frozenset({"class1"}))
    drawn = {word for _ in range(100) for word in Distractors([*FACTS, fact]).draw(fact, rng)}
    assert not drawn & {"class0", "class1"}


def test_an_expression_is_graded_by_its_end() -> None:
    steps = next(question for question in QUESTIONS if question.choices is None)
    assert not is_right(steps, "I do not know.")
    assert is_right(steps, f"1 + 1 = 2. Therefore, the answer is {steps.answer}.")
