"""The frozen questions are disjoint from the training questions, and right."""

import re
from random import Random
from typing import get_args

import pytest

from edgewise_lab.evaluation.tasks.base import Question as Asked
from edgewise_lab.evaluation.tasks.base import Split
from edgewise_lab.evaluation.tasks.grading import is_right, is_strictly_right
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from pocket import families, frames
from pocket.corpus import Corpus
from pocket.facts import Chain, Fact
from pocket.families import Knowledge
from pocket.frozen import DRAWS, SPLITS, frozen_questions, kept_apart
from pocket.questions import Family, Question, Wording, reserved

NAMES: tuple[Split, ...] = get_args(Split)
GROUPS = ("animal", "tool", "plant")
FACTS = [
    Fact("kind", f"thing{i}", f"class{i % 9}", GROUPS[i % 3], frozenset({f"class{i % 9}"}))
    for i in range(200)
] + [Fact("kind", f"class{i}", f"realm{i % 6}", "realm") for i in range(9)]
CHAINS = [Chain(FACTS[i], FACTS[200 + i % 9]) for i in range(200)]
KNOWN = Knowledge(FACTS, CHAINS)
FAMILIES: tuple[Family, ...] = get_args(Family)


def drawn(family: Family, count: int, wording: Wording | None = None) -> list[Question]:
    rng = Random(0)
    return [DRAWS[family](KNOWN, wording or Wording(), rng) for _ in range(count)]


def asked(question: Question) -> Asked:
    """As an evaluation sees it."""
    names = ("family", "prompt", "answer", "check", "reference", "choices")
    return Asked(id="1", **{name: getattr(question, name) for name in names})


def test_every_frozen_prompt_is_reserved_and_none_appears_twice() -> None:
    prompts = [question.prompt for split in NAMES for question in pocketqa(split).questions]
    assert all(map(reserved, prompts))
    assert len(set(prompts)) == len(prompts)


def test_training_draws_no_reserved_prompt() -> None:
    corpus = Corpus(FACTS, CHAINS, seed=0)
    for draw in (corpus.facts, corpus.two_hop, corpus.analogy, corpus.each):
        for _ in range(300):
            prompt = draw().prompt
            assert prompt
            assert prompt.startswith("Question: ")
            assert not reserved(prompt)


def test_generated_prompts_are_reserved_at_the_stated_rate() -> None:
    prompts = {q.prompt for family in FAMILIES for q in drawn(family, 1000)}
    rate = sum(map(reserved, prompts)) / len(prompts)
    assert 1 / 20 < rate < 1 / 13


@pytest.mark.parametrize("family", FAMILIES)
def test_every_reference_is_graded_right(family: Family) -> None:
    for question in drawn(family, 300):
        assert is_right(asked(question), question.reference)
        assert is_strictly_right(asked(question), question.reference)


def test_facts_kept_apart_are_asked_for_in_their_split_alone() -> None:
    subjects = {f.subject: kept_apart(f) for f in FACTS}
    assert 0 < sum(map(kept_apart, FACTS)) < len(FACTS) / 2
    for record in frozen_questions(FACTS, CHAINS, 1, counts=20):
        about = record["about"]
        assert isinstance(about, tuple)
        assert {subjects[subject] for subject in about} <= {record["split"] == "facts"}


def test_shifted_frames_are_in_no_other_split() -> None:
    for family in FAMILIES:
        shifted = drawn(family, 50, SPLITS["frames"].wording)
        usual = drawn(family, 200, SPLITS["train"].wording)
        assert {q.style for q in shifted} == {"notes"}
        assert "notes" not in {q.style for q in usual}
        cues = frames.asked(frames.CUES["notes"], "shifted")
        assert all(any(cue in q.prompt for cue in cues) for q in shifted)
        assert not any(cue in q.prompt for q in usual for cue in cues)


def test_every_worked_step_is_true() -> None:
    worked = 0
    for question in drawn("steps", 1000):
        for a, sign, b, c in re.findall(r"(\d+)([-+*])(\d+)=(\d+)", question.reference):
            left, right, result = int(a), int(b), int(c)
            assert result == {"+": left + right, "-": left - right, "*": left * right}[sign]
            worked += 1
    assert worked > 500


def test_a_free_text_is_right_where_it_says_of_each_thing_what_it_is() -> None:
    question = asked(drawn("each", 1)[0])
    assert is_right(question, question.reference)
    pattern = families.pattern([("heron", "bird"), ("spade", "tool")])
    assert re.search(pattern, "heron is a kind of bird. We say tool in general and spade for one.")
    assert not re.search(pattern, "heron is a kind of tool. spade is a kind of bird.")
    assert not re.search(pattern, "heron is a kind of bird.")


def test_wrong_choices_are_never_true() -> None:
    rng = Random(1)
    fact = Fact("kind", "x", "class0", "animal", frozenset({"class1"}))
    words = {w for _ in range(100) for w in Knowledge([*FACTS, fact], []).wrong(fact, rng)}
    assert len(words) > 4
    assert not words & {"class0", "class1", "x"}
    for chain in CHAINS:
        wrong = KNOWN.wrong_end(chain, rng)
        assert not {chain.asked, chain.between, chain.answer} & set(wrong)
