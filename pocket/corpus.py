"""Questions and answers for training and for the frozen question set.

A prompt belongs to the held-out set when its SHA-256 starts with a byte below `HELD_OUT_BYTES`,
so training and evaluation are disjoint by construction: exactly this wording with exactly these
choices or operands was never trained on.
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from pocket.facts import Fact

HELD_OUT_BYTES = 26
ZIPF_OFFSET, ZIPF_EXPONENT = 30, 0.8
"""A fact of rank r is drawn with weight 1 / (r + offset) ^ exponent."""

FORMAT = (
    "Please format your response in the following way: [Explanation]. "
    "Therefore, the answer is answer (label). Answer and Reasoning:"
)
_FACT_FRAMES = (
    ("What kind of thing is {a_name}?", "{A_name} is something that people class as {kind}."),
    ("Which of these is {a_name}?", "Those who know {a_name} would say that it is {kind}."),
    ("How would you describe {a_name}?", "In a dictionary {a_name} is described as {kind}."),
    ("{A_name} is best seen as what?", "Of the choices, {a_name} is best seen as {kind}."),
    ("To what class does {a_name} belong?", "The class to which {a_name} belongs is {kind}."),
)
_NAMES = "Tom Anna Ben Mia Sam Eva Leo Nora Max Ida".split()
_THINGS = "apples books coins stamps shells cards marbles eggs pens plums".split()
_GAINS = ("buys {n} more", "finds {n} more", "is given {n} more")
_LOSSES = ("gives away {n}", "loses {n}", "sells {n}")
LETTERS = "abcde"


class Question(NamedTuple):
    """`prompt` is the user's message, `reference` the whole right answer."""

    family: str
    prompt: str
    reference: str
    answer: str
    choices: tuple[str, ...] | None = None
    label: str | None = None


def held_out(prompt: str) -> bool:
    """Whether a prompt is kept for evaluation."""
    return hashlib.sha256(prompt.encode()).digest()[0] < HELD_OUT_BYTES


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


class Corpus:
    """Draws questions about `facts` (commonest first) and sums, all from one random state."""

    def __init__(self, facts: list[Fact], rng: random.Random) -> None:
        self._facts = facts
        self._rng = rng
        self._weights = [1 / (rank + ZIPF_OFFSET) ** ZIPF_EXPONENT for rank in range(len(facts))]
        self._kinds: dict[str, list[str]] = defaultdict(list)
        for fact in facts:
            self._kinds[fact.domain].append(fact.kind)

    def fact_question(self) -> Question:
        """Five choices; the wrong ones are kinds of the same domain, common ones more often."""
        fact = self._draw()
        choices = {fact.kind: None}
        while len(choices) < len(LETTERS):
            choices[self._rng.choice(self._kinds[fact.domain])] = None
        order = list(choices)
        self._rng.shuffle(order)
        ask, explain = self._rng.choice(_FACT_FRAMES)
        label = LETTERS[order.index(fact.kind)]
        listed = " ".join(f"{letter.upper()}. {c}" for letter, c in zip(LETTERS, order, strict=True))
        words = {"a_name": _article(fact.name), "A_name": _article(fact.name).capitalize()}
        return Question(
            "facts",
            f"Question: {ask.format(**words)} Choices: {listed} {FORMAT}",
            f"{explain.format(kind=_article(fact.kind), **words)} "
            f"Therefore, the answer is {fact.kind} ({label}).",
            fact.kind,
            tuple(order),
            label,
        )

    def steps_question(self) -> Question:
        """Two or three sums in a row, every intermediate result written out."""
        rng = self._rng
        name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
        total = rng.randint(5, 60)
        told, worked = [f"{name} has {total} {thing}."], [f"{name} starts with {total} {thing}."]
        for _ in range(rng.randint(2, 3)):
            gain = total < 12 or (total < 80 and rng.random() < 0.5)
            n = rng.randint(2, 29) if gain else rng.randint(2, min(29, total - 1))
            frame = rng.choice(_GAINS if gain else _LOSSES)
            told.append(f"{name} {frame.format(n=n)}.")
            after = total + n if gain else total - n
            worked.append(f"{total} {'+' if gain else '-'} {n} = {after}.")
            total = after
        prompt = f"Question: {' '.join(told)} How many {thing} does {name} have now?"
        return Question(
            "steps", prompt, f"{' '.join(worked)} Therefore, the answer is {total}.", str(total)
        )

    def letter_question(self) -> Question:
        """Practice in naming the letter of a given choice; training only."""
        question = self.fact_question()
        assert question.choices is not None
        label = self._rng.choice(LETTERS)
        chosen = question.choices[LETTERS.index(label)]
        listed = question.prompt[question.prompt.index("Choices:") : -len(FORMAT)]
        return Question(
            "letter",
            f"{listed}Which letter is {chosen}?",
            f"Therefore, the answer is {chosen} ({label}).",
            label,
        )

    def description(self) -> Question:
        """Free text about one thing; training only."""
        fact = self._draw()
        return Question(
            "text",
            f"Tell me about the {fact.name}.",
            f"The {fact.name} is {_article(fact.kind)}. "
            f"{_article(fact.kind).capitalize()} is a kind of {fact.above}.",
            fact.kind,
        )

    def training(self) -> Iterator[Question]:
        """An endless mix of questions, none of them held out."""
        draws = (self.fact_question, self.steps_question, self.letter_question, self.description)
        while True:
            question = self._rng.choices(draws, (50, 25, 10, 15))[0]()
            if question.family in ("letter", "text") or not held_out(question.prompt):
                yield question

    def evaluation(self, family: str, count: int) -> list[Question]:
        """`count` different held-out questions of a family, drawn by the training law."""
        draw = {"facts": self.fact_question, "steps": self.steps_question}[family]
        found: dict[str, Question] = {}
        while len(found) < count:
            question = draw()
            if held_out(question.prompt):
                found[question.prompt] = question
        return list(found.values())

    def _draw(self) -> Fact:
        return self._rng.choices(self._facts, self._weights)[0]
