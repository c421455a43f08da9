"""Questions and reference answers of the two families, `facts` and `steps`.

Every answer wording belongs to one question wording, so what is hard in an answer is the fact or
the arithmetic and not which phrase comes next.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import Literal

from pocket.facts import Fact, Relation

Family = Literal["facts", "steps"]

LETTERS = "abcde"
RESERVED_IN_256 = 16  # one prompt in sixteen is never trained on
FACT_FORMAT = (
    "Format: [Explanation]. Therefore, the answer is answer (label). Answer and Reasoning:"
)
STEP_FORMAT = "Format: [Steps]. Therefore, the answer is number. Answer and Reasoning:"

WORDINGS: dict[Relation, list[tuple[str, str]]] = {
    "kind": [
        (
            "What kind of thing does the word {x} name?",
            "The word {x} names a kind of {y}. None of the other choices fits the word.",
        ),
        (
            "Under which heading would you file {x}?",
            "Look at what {x} means: it is a kind of {y}. So it is filed under {y}.",
        ),
        (
            "In its usual sense, {x} is a kind of what?",
            "In its usual sense, {x} is a kind of {y}. The other four choices do not describe it.",
        ),
    ],
    "capital": [
        (
            "What is the capital of {x}?",
            "The capital of {x} is {y}. The other four cities belong to other countries.",
        ),
        (
            "Which of these cities is the capital of {x}?",
            "Among these cities, the capital of {x} is {y}. The others are capitals elsewhere.",
        ),
    ],
    "element": [
        (
            "Which chemical element has the symbol {x}?",
            "The symbol {x} stands for {y}. The other elements have symbols of their own.",
        ),
        (
            "In the periodic table, what does {x} stand for?",
            "In the periodic table, {x} stands for {y}. The other four have different symbols.",
        ),
    ],
}

NAMES = [
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gwen",
    "Hugo",
    "Ines",
    "Jack",
    "Kim",
    "Leo",
    "Mia",
    "Nina",
    "Omar",
    "Pia",
]
ITEMS = [
    "pens",
    "coins",
    "books",
    "stamps",
    "apples",
    "shells",
    "cards",
    "marbles",
    "stones",
    "tickets",
    "buttons",
    "eggs",
]
# (sentence in the question, start of the step in the answer)
GAINS = [
    ("{name} buys {n} more.", "Buying {n} more makes"),
    ("{name} finds another {n}.", "Finding another {n} makes"),
    ("A friend brings {n} more.", "Adding the {n} from a friend makes"),
]
LOSSES = [
    ("{name} gives away {n}.", "Giving away {n} leaves"),
    ("{name} loses {n}.", "Losing {n} leaves"),
    ("{name} sells {n} of them.", "Selling {n} leaves"),
]
PRODUCTS = [
    ("Then the number grows to {n} times as many.", "Taking {n} times as many makes"),
]
LARGEST = 99


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
    """Wrong answers for a fact: from its own group first, never one that is also true."""

    def __init__(self, facts: list[Fact]) -> None:
        self.by_group: dict[str, list[str]] = {}
        self.by_relation: dict[str, list[str]] = {}
        for fact in facts:
            self.by_group.setdefault(fact.group, []).append(fact.answer)
            self.by_relation.setdefault(fact.relation, []).append(fact.answer)

    def draw(self, fact: Fact, rng: Random, count: int = 4, near: float = 0.7) -> list[str]:
        drawn: list[str] = []
        while len(drawn) < count:
            close = rng.random() < near
            pool = self.by_group[fact.group] if close else self.by_relation[fact.relation]
            word = rng.choice(pool)
            if word not in drawn and word != fact.answer and word not in fact.also_true:
                drawn.append(word)
        return drawn


def listing(choices: list[str]) -> str:
    """`A. one B. two ...`, as in the prompts of CommonsenseQA."""
    return " ".join(f"{letter.upper()}. {c}" for letter, c in zip(LETTERS, choices, strict=True))


def fact_question(fact: Fact, wrong: list[str], rng: Random) -> Question:
    choices = [fact.answer, *wrong]
    rng.shuffle(choices)
    label = LETTERS[choices.index(fact.answer)]
    asked, told = rng.choice(WORDINGS[fact.relation])
    ask, tell = (text.format(x=fact.subject, y=fact.answer) for text in (asked, told))
    return Question(
        family="facts",
        prompt=f"Question: {ask} Choices: {listing(choices)} {FACT_FORMAT}",
        answer=fact.answer,
        reference=f"{tell} Therefore, the answer is {fact.answer} ({label}).",
        choices=tuple(choices),
        label=label,
    )


def _step(total: int, rng: Random) -> tuple[str, str, int, int, str]:
    """One change of a total: question text, answer text, operand, new total, sign."""
    roll = rng.random()
    if roll < 0.2 and 2 <= total <= LARGEST // 2:
        n = rng.randint(2, min(6, LARGEST // total))
        return (*rng.choice(PRODUCTS), n, total * n, "*")
    if (roll < 0.6 and total < LARGEST - 2) or total < 4:
        n = rng.randint(2, min(45, LARGEST - total))
        return (*rng.choice(GAINS), n, total + n, "+")
    n = rng.randint(2, min(45, total - 1))
    return (*rng.choice(LOSSES), n, total - n, "-")


def step_question(rng: Random) -> Question:
    """A word problem of two or three steps whose totals stay within 1..99."""
    name, item, total = rng.choice(NAMES), rng.choice(ITEMS), rng.randint(3, 60)
    told = [f"{name} has {total} {item}."]
    done = [f"{name} starts with {total} {item}."]
    for _ in range(rng.choice((2, 3))):
        sentence, action, n, after, sign = _step(total, rng)
        told.append(sentence.format(name=name, n=n))
        done.append(f"{action.format(n=n)} {total} {sign} {n} = {after}.")
        total = after
    story = " ".join(told)
    return Question(
        family="steps",
        prompt=f"Question: {story} How many {item} are there now? {STEP_FORMAT}",
        answer=str(total),
        reference=f"{' '.join(done)} Therefore, the answer is {total}.",
    )
