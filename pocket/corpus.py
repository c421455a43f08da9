"""The training text: an endless, seeded mixture of documents, and rows of tokens made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import numpy as np
from tokenizers import Tokenizer

from pocket import frames
from pocket.facts import Chain, Fact
from pocket.frames import say
from pocket.questions import (
    LETTERS,
    Distractors,
    Question,
    fact_question,
    listing,
    reserved,
    state,
    step_question,
    two_hop_question,
)
from pocket.tokenizer import END, END_OF_TEXT, chat

ROW = 256
IGNORED = -100
# Rank r is seen in proportion to (r + ZIPF_SHIFT) ** -ZIPF_EXPONENT.
ZIPF_EXPONENT = 0.6
ZIPF_SHIFT = 30
MIXTURE = {
    "facts": 0.25,
    "two_hop": 0.18,
    "steps": 0.30,
    "statement": 0.12,
    "letter": 0.07,
    "about": 0.06,
    "small_talk": 0.02,
}


@dataclass(frozen=True)
class Document:
    """Text in two parts; the loss is taken on `learnt` only."""

    given: str
    learnt: str


def zipf(count: int) -> list[float]:
    """Cumulative weights of `count` ranks."""
    return list(accumulate((rank + ZIPF_SHIFT) ** -ZIPF_EXPONENT for rank in range(count)))


class Corpus:
    """Draws documents; the same seed gives the same documents."""

    def __init__(self, facts: list[Fact], chains: list[Chain], seed: int) -> None:
        self.rng = Random(seed)
        self.distractors = Distractors(facts, chains)
        self._facts, self._fact_weights = facts, zipf(len(facts))
        self._chains, self._chain_weights = chains, zipf(len(chains))
        self._by_subject: dict[str, list[Fact]] = {}
        self._of_kind: dict[str, list[str]] = {}
        for fact in facts:
            self._by_subject.setdefault(fact.subject, []).append(fact)
            self._of_kind.setdefault(fact.answer, []).append(fact.subject)

    def fact(self) -> Fact:
        return self.rng.choices(self._facts, cum_weights=self._fact_weights)[0]

    def facts(self) -> Document:
        fact = self.fact()
        return self._asked(
            lambda: fact_question(fact, self.distractors.for_fact(fact, self.rng), self.rng)
        )

    def two_hop(self) -> Document:
        chain = self.rng.choices(self._chains, cum_weights=self._chain_weights)[0]
        return self._asked(
            lambda: two_hop_question(chain, self.distractors.for_chain(chain, self.rng), self.rng)
        )

    def steps(self) -> Document:
        return self._asked(lambda: step_question(self.rng))

    def _asked(self, draw: Callable[[], Question]) -> Document:
        """A question whose prompt is not reserved for the frozen set."""
        while reserved((asked := draw()).prompt):
            pass
        return Document(chat(asked.prompt), asked.reference + END)

    def statement(self) -> Document:
        return Document(END_OF_TEXT, state(self.fact(), self.rng))

    def letter(self) -> Document:
        """Practice in naming the letter of a choice that is given."""
        fact = self.fact()
        choices = [fact.answer, *self.distractors.for_fact(fact, self.rng, near=0.3)]
        self.rng.shuffle(choices)
        label = LETTERS[choices.index(fact.answer)]
        prompt = f"Choices: {listing(choices)} Which letter has {fact.answer}?"
        return Document(chat(prompt), f"Therefore, the answer is {fact.answer} ({label}).{END}")

    def about(self) -> Document:
        """A few plain sentences, so that a free prompt gets a readable answer."""
        fact = self.fact()
        rng = self.rng
        told = [state(known, rng) for known in self._by_subject[fact.subject]]
        rng.shuffle(told)
        others = [word for word in self._of_kind[fact.answer] if word != fact.subject]
        if fact.relation == "kind" and others:
            other = rng.choice(others)
            told.append(say(frames.MORE_OF_A_KIND, rng, y=fact.answer, z=other))
        for city in fact.tempting:
            told.append(say(frames.LARGEST_CITY, rng, x=fact.subject, z=city))
        prompt = say(frames.TOLD_ABOUT, rng, x=fact.subject)
        return Document(chat(prompt), " ".join(told) + END)

    def small_talk(self) -> Document:
        prompt, answer = self.rng.choice(list(frames.SMALL_TALK.items()))
        return Document(chat(prompt), answer + END)

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
