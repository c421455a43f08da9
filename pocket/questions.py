"""Questions and reference answers of the three families: facts, two-hop and steps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import Literal

from pocket import frames
from pocket.facts import Chain, Fact
from pocket.frames import say

Family = Literal["facts", "two-hop", "steps"]

LETTERS = "abcde"
RESERVED_IN_256 = 16  # one prompt in sixteen is never trained on
CHOICE_FORMAT = (
    "Format: [Explanation]. Therefore, the answer is answer (label). Answer and Reasoning:"
)
NUMBER_FORMAT = "Format: [Steps]. Therefore, the answer is number. Answer and Reasoning:"
CHOSEN_FIRST = 0.35  # how often an explanation names the choice before it says why
NEAR = 0.7  # how often a wrong choice comes from the fact's own group
LARGEST_TOTAL = 99
STEPS = (2, 2, 2, 3, 3, 4)


@dataclass(frozen=True)
class Question:
    """One question: `prompt` is the user's message, before the chat template."""

    family: Family
    prompt: str
    answer: str
    reference: str
    choices: tuple[str, ...] | None = None
    label: str | None = None


def reserved(prompt: str) -> bool:
    """Whether a prompt is kept out of training; decided by its SHA-256, so anyone can check it."""
    return hashlib.sha256(prompt.encode()).digest()[0] < RESERVED_IN_256


class Distractors:
    """Wrong answers, each as often as it is the answer to something; never one that is true."""

    def __init__(self, facts: list[Fact], chains: list[Chain]) -> None:
        self.by_group: dict[str, list[str]] = {}
        self.by_relation: dict[str, list[str]] = {}
        self.by_hops: dict[str, list[str]] = {}
        for fact in facts:
            self.by_group.setdefault(fact.group, []).append(fact.answer)
            self.by_relation.setdefault(fact.relation, []).append(fact.answer)
        for chain in chains:
            self.by_hops.setdefault(chain.second.relation, []).append(chain.answer)

    def for_fact(self, fact: Fact, rng: Random, near: float = NEAR) -> list[str]:
        group, relation = self.by_group[fact.group], self.by_relation[fact.relation]
        taken = {fact.answer, fact.subject, *fact.also_true}
        return _draw([(near, group), (1 - near, relation)], taken, fact.tempting, rng)

    def for_chain(self, chain: Chain, rng: Random) -> list[str]:
        true = chain.first.also_true | chain.second.also_true
        taken = {chain.answer, chain.between, chain.asked, *true}
        return _draw([(1.0, self.by_hops[chain.second.relation])], taken, (), rng)


def _draw(
    pools: list[tuple[float, list[str]]], taken: set[str], first: tuple[str, ...], rng: Random
) -> list[str]:
    drawn = list(first)
    weights = [weight for weight, _ in pools]
    while len(drawn) < len(LETTERS) - 1:
        word = rng.choice(rng.choices(pools, weights)[0][1])
        if word not in taken and word not in drawn:
            drawn.append(word)
    return drawn


def listing(choices: list[str]) -> str:
    """`A. one B. two ...`, as in the prompts of CommonsenseQA."""
    return " ".join(f"{letter.upper()}. {c}" for letter, c in zip(LETTERS, choices, strict=True))


def choose(
    family: Family, ask: str, explanation: str, answer: str, wrong: list[str], rng: Random
) -> Question:
    """A question of five choices in the prompt and answer format of arXiv 2504.07878."""
    choices = [answer, *wrong]
    rng.shuffle(choices)
    label = LETTERS[choices.index(answer)]
    opener = say(frames.OPENERS, rng)
    closer = say(frames.CLOSERS, rng)
    told = f"{opener} {explanation} {closer} Therefore, the answer is {answer} ({label})."
    return Question(
        family=family,
        prompt=f"Question: {ask} Choices: {listing(choices)} {CHOICE_FORMAT}",
        answer=answer,
        reference=" ".join(told.split()),
        choices=tuple(choices),
        label=label,
    )


def state(fact: Fact, rng: Random) -> str:
    """One sentence that states a fact."""
    return say(frames.STATED[fact.relation], rng, x=fact.subject, y=fact.answer)


def fact_question(fact: Fact, wrong: list[str], rng: Random) -> Question:
    words = {"x": fact.subject, "y": fact.answer}
    ask = say(frames.ASKED[fact.relation], rng, **words)
    if rng.random() < CHOSEN_FIRST:
        why = say(frames.CHOSEN[fact.relation], rng, **words)
    else:
        why = state(fact, rng)
    return choose("facts", ask, why, fact.answer, wrong, rng)


def two_hop_question(chain: Chain, wrong: list[str], rng: Random) -> Question:
    """A question whose explanation states both facts, the second one last."""
    ask = say(frames.TWO_HOP_ASKED[chain.first.relation], rng, x=chain.asked)
    link = say(frames.LINKS, rng)
    why = f"{state(chain.first, rng)} {link} {state(chain.second, rng)}"
    return choose("two-hop", ask, why, chain.answer, wrong, rng)


def _change(total: int, rng: Random) -> tuple[str, int, int]:
    """One change of a total: operation, operand, new total."""
    roll = rng.random()
    divisors = [n for n in range(2, 10) if total % n == 0 and total > n]
    if roll < 0.15 and divisors:
        n = rng.choice(divisors)
        return "/", n, total // n
    if roll < 0.3 and 2 <= total <= LARGEST_TOTAL // 2:
        n = rng.randint(2, min(9, LARGEST_TOTAL // total))
        return "*", n, total * n
    if (roll < 0.65 and total < LARGEST_TOTAL - 2) or total < 4:
        n = rng.randint(2, min(60, LARGEST_TOTAL - total))
        return "+", n, total + n
    n = rng.randint(2, min(60, total - 1))
    return "-", n, total - n


def step_question(rng: Random) -> Question:
    """A word problem of two to four steps whose totals stay within 1 and LARGEST_TOTAL.

    Some have a sentence with a number that plays no part.
    """
    name, other = rng.sample(frames.NAMES, 2)
    words = {"name": name, "other": other, "item": rng.choice(frames.ITEMS)}
    total = rng.randint(3, 90)
    told = [say(frames.START, rng, a=total, **words)]
    done = [say(frames.WORKED_START, rng, a=total, **words)]
    for _ in range(rng.choice(STEPS)):
        sign, n, after = _change(total, rng)
        told.append(say(frames.CHANGES[sign], rng, n=n, **words))
        done.append(say(frames.WORKED[sign], rng, a=total, n=n, b=after))
        total = after
    told.insert(rng.randint(1, len(told)), say(frames.ASIDES, rng, k=rng.randint(2, 60), **words))
    told.append(say(frames.HOW_MANY, rng, **words))
    done.append(say(frames.WORKED_END, rng))
    done.append(f"Therefore, the answer is {total}.")
    return Question(
        family="steps",
        prompt=f"Question: {' '.join(' '.join(told).split())} {NUMBER_FORMAT}",
        answer=str(total),
        reference=" ".join(" ".join(done).split()),
    )
