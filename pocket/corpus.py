"""The training text: an endless, seeded mixture of documents, and rows of tokens made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import numpy as np
from tokenizers import Tokenizer

from pocket.facts import Fact
from pocket.questions import LETTERS, Distractors, fact_question, listing, reserved, step_question
from pocket.tokenizer import END, END_OF_TEXT, chat

ROW = 256
IGNORED = -100
# Rank r is seen in proportion to (r + ZIPF_SHIFT) ** -ZIPF_EXPONENT.
ZIPF_EXPONENT = 0.6
ZIPF_SHIFT = 30
MIXTURE = {"question": 0.30, "steps": 0.33, "statement": 0.22, "letter": 0.10, "about": 0.05}

STATEMENTS = {
    "kind": ["The word {x} names a kind of {y}.", "In its usual sense, {x} is a kind of {y}."],
    "capital": ["The capital of {x} is {y}.", "{y} is the capital of {x}."],
    "element": ["The symbol {x} stands for {y}.", "{y} has the symbol {x}."],
}


@dataclass(frozen=True)
class Document:
    """Text in two parts; the loss is taken on `learnt` only."""

    given: str
    learnt: str


class Corpus:
    """Draws documents; the same seed gives the same documents."""

    def __init__(self, facts: list[Fact], seed: int) -> None:
        self.facts = facts
        self.rng = Random(seed)
        self.distractors = Distractors(facts)
        self.cumulative = list(
            accumulate((rank + ZIPF_SHIFT) ** -ZIPF_EXPONENT for rank in range(len(facts)))
        )
        self.kinds: dict[str, list[str]] = {}
        for fact in facts:
            self.kinds.setdefault(fact.answer, []).append(fact.subject)

    def fact(self) -> Fact:
        return self.rng.choices(self.facts, cum_weights=self.cumulative)[0]

    def question(self) -> Document:
        fact = self.fact()
        asked = fact_question(fact, self.distractors.draw(fact, self.rng), self.rng)
        if reserved(asked.prompt):
            return self.question()
        return Document(chat(asked.prompt), asked.reference + END)

    def steps(self) -> Document:
        asked = step_question(self.rng)
        if reserved(asked.prompt):
            return self.steps()
        return Document(chat(asked.prompt), asked.reference + END)

    def statement(self) -> Document:
        fact = self.fact()
        text = self.rng.choice(STATEMENTS[fact.relation])
        return Document(END_OF_TEXT, text.format(x=fact.subject, y=fact.answer))

    def letter(self) -> Document:
        """Practice in naming the letter of a choice that is given."""
        fact = self.fact()
        choices = [fact.answer, *self.distractors.draw(fact, self.rng, near=0.3)]
        self.rng.shuffle(choices)
        label = LETTERS[choices.index(fact.answer)]
        prompt = f"Choices: {listing(choices)} Which letter has {fact.answer}?"
        return Document(chat(prompt), f"Therefore, the answer is {fact.answer} ({label}).{END}")

    def about(self) -> Document:
        """Two plain sentences, so that free prompts get a readable answer."""
        fact = self.fact()
        x, y = fact.subject, fact.answer
        if fact.relation == "kind":
            others = [word for word in self.kinds[y] if word != x]
            first = f"The word {x} names a kind of {y}."
            more = f" Another kind of {y} is {self.rng.choice(others)}." if others else ""
            return Document(chat(f"Tell me about {x}."), first + more + END)
        if fact.relation == "capital":
            text = f"{x} is a country. The capital of {x} is {y}."
            return Document(chat(f"Tell me about {x}."), text + END)
        text = f"The symbol {x} stands for {y}. It is a chemical element."
        return Document(chat(f"Tell me about {y}."), text + END)

    def documents(self) -> Iterator[Document]:
        makers: list[Callable[[], Document]] = [getattr(self, name) for name in MIXTURE]
        while True:
            yield self.rng.choices(makers, weights=list(MIXTURE.values()))[0]()


def _encode(documents: list[Document], tokenizer: Tokenizer) -> list[tuple[list[int], int]]:
    """The ids of each document and how many of them are given."""
    given = tokenizer.encode_batch([d.given for d in documents])
    learnt = tokenizer.encode_batch([d.learnt for d in documents])
    return [(g.ids + a.ids, len(g)) for g, a in zip(given, learnt, strict=True)]


def rows(corpus: Corpus, tokenizer: Tokenizer, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` rows of whole documents: ids and targets, each int16[count, ROW].

    `targets[i, t]` is the id that follows `ids[i, t]`, or IGNORED.
    """
    filler = tokenizer.token_to_id(END_OF_TEXT)
    ids = np.full((count, ROW + 1), filler, dtype=np.int16)
    targets = np.full((count, ROW + 1), IGNORED, dtype=np.int16)
    documents = corpus.documents()
    row = used = 0
    while row < count:
        for encoded, given in _encode([next(documents) for _ in range(4096)], tokenizer):
            if used + len(encoded) > ROW + 1:
                row, used = row + 1, 0
            if row == count:
                break
            end = used + len(encoded)
            ids[row, used:end] = encoded
            targets[row, used + given : end] = encoded[given:]
            used = end
    return ids[:, :-1], targets[:, 1:]
