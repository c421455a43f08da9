"""The frozen questions are disjoint from the training questions, and right."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import pytest

from edgewise.evaluation.tasks.base import Split
from edgewise.evaluation.tasks.grading import is_right, is_strictly_right
from edgewise.evaluation.tasks.pocketqa import pocketqa
from pocket import frames
from pocket.corpus import Corpus
from pocket.facts import Chain, Fact
from pocket.frames import say
from pocket.frozen import SPLITS
from pocket.questions import (
    Distractors,
    fact_question,
    reserved,
    step_question,
    two_hop_question,
)

NAMES: tuple[Split, ...] = ("train", "calibration", "test")
BY_SPLIT = {split: pocketqa(split).questions for split in NAMES}
QUESTIONS = [question for split in NAMES for question in BY_SPLIT[split]]
FACTS = [
    Fact("kind", f"thing{i}", f"class{i % 9}", "group", also_true=frozenset({f"class{i % 9}"}))
    for i in range(50)
] + [Fact("kind", f"class{i}", f"realm{i % 6}", "group") for i in range(9)]
CHAINS = [Chain(FACTS[i], FACTS[50 + i % 9]) for i in range(50)]


def test_every_split_holds_what_is_stated() -> None:
    sizes = Counter((q.family, split) for split in NAMES for q in BY_SPLIT[split])
    families = ("facts", "two-hop", "steps")
    assert sizes == {(f, split): SPLITS[split] for f in families for split in NAMES}
    assert SPLITS["calibration"] + SPLITS["test"] >= 1500


def test_every_frozen_prompt_is_reserved() -> None:
    assert all(reserved(question.prompt) for question in QUESTIONS)


def test_no_prompt_appears_twice() -> None:
    assert len({question.prompt for question in QUESTIONS}) == len(QUESTIONS)


def test_training_draws_no_reserved_prompt() -> None:
    corpus = Corpus(FACTS, CHAINS, seed=0)
    for draw in (corpus.facts, corpus.two_hop, corpus.steps):
        for _ in range(300):
            prompt = draw().given.removeprefix("<|user|>").removesuffix("<|end|><|assistant|>")
            assert prompt.startswith("Question: ")
            assert not reserved(prompt)


def test_generated_prompts_are_reserved_at_the_stated_rate() -> None:
    rng = Random(0)
    wrong = Distractors(FACTS, CHAINS)
    prompts = [fact_question(f, wrong.for_fact(f, rng), rng).prompt for f in FACTS * 20]
    prompts += [two_hop_question(c, wrong.for_chain(c, rng), rng).prompt for c in CHAINS * 20]
    prompts += [step_question(rng).prompt for _ in range(1000)]
    rate = sum(map(reserved, prompts)) / len(prompts)
    assert 1 / 24 < rate < 1 / 11


def test_every_reference_is_graded_right() -> None:
    for question in QUESTIONS:
        assert is_right(question, question.reference)
        assert is_strictly_right(question, question.reference)


def test_every_worked_step_of_a_reference_is_true() -> None:
    worked = 0
    for question in QUESTIONS:
        for a, sign, b, c in re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", question.reference):
            left, right, result = int(a), int(b), int(c)
            if sign == "/":
                assert result * right == left
            else:
                assert result == {"+": left + right, "-": left - right, "*": left * right}[sign]
            worked += 1
    assert worked > 3000


def test_a_two_hop_reference_states_the_answer_before_it_concludes() -> None:
    for question in QUESTIONS:
        if question.family == "two-hop":
            explained, concluded = question.reference.split(" Therefore, ")
            assert question.answer in explained
            assert question.answer in concluded


def test_distractors_are_never_true() -> None:
    rng = Random(1)
    fact = Fact("kind", "x", "class0", "group", frozenset({"class1"}))
    drawn = {w for _ in range(100) for w in Distractors([*FACTS, fact], []).for_fact(fact, rng)}
    assert len(drawn) > 4
    assert not drawn & {"class0", "class1", "x"}
    for chain in CHAINS:
        wrong = Distractors(FACTS, CHAINS).for_chain(chain, rng)
        assert not {chain.asked, chain.between, chain.answer} & set(wrong)


def test_tempting_answers_are_always_offered() -> None:
    fact = Fact("kind", "x", "class0", "group", tempting=("class7",))
    wrong = Distractors(FACTS, CHAINS)
    assert all("class7" in wrong.for_fact(fact, Random(seed)) for seed in range(20))


AROUND = [frames.OPENERS, frames.CLOSERS]
AROUND_STEPS = [frames.WORKED_START, frames.WORKED_END]


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (frames.ASKED.values(), [*frames.STATED.values(), *frames.CHOSEN.values(), *AROUND]),
        (frames.TWO_HOP_ASKED.values(), [*frames.STATED.values(), frames.LINKS, *AROUND]),
        ([frames.START, *frames.CHANGES.values()], [*frames.WORKED.values(), *AROUND_STEPS]),
    ],
    ids=["facts", "two-hop", "steps"],
)
def test_each_family_has_twenty_frames(
    asked: Iterable[Sequence[str]], answered: Iterable[Sequence[str]]
) -> None:
    for groups in (asked, answered):
        assert len({frame for group in groups for frame in group}) >= 20


def test_frames_are_drawn_evenly_and_alternatives_by_zipf() -> None:
    rng = Random(0)
    drawn = Counter(say(("[a|b|c] {x}", "z"), rng, x=1) for _ in range(6000))
    assert set(drawn) == {"a 1", "b 1", "c 1", "z"}
    assert drawn["z"] == pytest.approx(3000, rel=0.1)
    assert drawn["a 1"] == pytest.approx(3000 * 6 / 11, rel=0.1)
    assert drawn["c 1"] == pytest.approx(3000 * 2 / 11, rel=0.1)
