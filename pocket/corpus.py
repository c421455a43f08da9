"""The training text: an endless, seeded mixture of documents, and rows of tokens made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from pocket import families, frames
from pocket.facts import Chain, Fact
from pocket.families import Knowledge, state
from pocket.frames import say
from pocket.questions import LETTERS, Question, Wording, listing, reserved
from pocket.steps import steps
from pocket.tokenizer import END, END_OF_TEXT, chat

ROW = 256
IGNORED = -100
HINT_EVERY = 3
"""At every so many tokens the first layer is to name the token before."""
MIXTURE = {
    "facts": 0.16,
    "two_hop": 0.14,
    "members": 0.12,
    "count": 0.11,
    "each": 0.12,
    "steps": 0.20,
    "statement": 0.03,
    "letter": 0.07,
    "about": 0.03,
    "small_talk": 0.02,
}


@dataclass(frozen=True)
class Document:
    """Text in two parts; the loss is taken on `learnt`, and on the letters of a list.

    `choices` are listed in `given`, each behind its letter.
    """

    given: str
    learnt: str
    choices: tuple[str, ...] = ()


class Rows(NamedTuple):
    """Whole documents in rows, each int16[count, ROW].

    `targets[i, t]` is the id that follows `ids[i, t]`, or IGNORED; `hints[i, t]` the one that the
    first layer is to name there: in a list the letter that a choice stands behind, at a bracket
    the token before it, elsewhere now and then the same. Without these a model of this size does
    not bind letters to choices; with them it does within a few ten thousand lists.
    """

    ids: np.ndarray
    targets: np.ndarray
    hints: np.ndarray


class Corpus:
    """Draws documents; the same seed gives the same documents."""

    def __init__(self, facts: list[Fact], chains: list[Chain], seed: int) -> None:
        self.rng = Random(seed)
        self.known = Knowledge(facts, chains)
        self.words = sorted({word for fact in facts for word in (fact.subject, fact.answer)})
        self._by_subject: dict[str, list[Fact]] = {}
        self._of_kind: dict[str, list[str]] = {}
        for fact in facts:
            self._by_subject.setdefault(fact.subject, []).append(fact)
            self._of_kind.setdefault(fact.answer, []).append(fact.subject)

    def facts(self) -> Document:
        return self._asked(families.facts)

    def two_hop(self) -> Document:
        return self._asked(families.two_hop)

    def members(self) -> Document:
        return self._asked(families.members)

    def count(self) -> Document:
        return self._asked(families.count)

    def each(self) -> Document:
        return self._asked(families.each)

    def steps(self) -> Document:
        return self._asked(lambda _, wording, rng: steps(wording, rng))

    def _asked(self, draw: Callable[[Knowledge, Wording, Random], Question]) -> Document:
        """A question whose prompt is not reserved for the frozen set."""
        while reserved((asked := draw(self.known, Wording(), self.rng)).prompt):
            pass
        return Document(chat(asked.prompt), asked.reference + END, asked.choices or ())

    def statement(self) -> Document:
        return Document(END_OF_TEXT, state(self.known.fact(self.rng), self.rng))

    def letter(self) -> Document:
        """Practice in naming the letters of words that stand in a list, in any order."""
        choices = self.rng.sample(self.words, self.rng.randint(2, len(LETTERS)))
        named = self.rng.sample(choices, self.rng.randint(1, len(choices)))
        told = " ".join(f"{word} ({LETTERS[choices.index(word)]})." for word in named)
        prompt = f"Choices: {listing(choices)} Which letters?"
        return Document(chat(prompt), f"{told}{END}", tuple(choices))

    def about(self) -> Document:
        """A few plain sentences, so that a free prompt gets a readable answer."""
        rng = self.rng
        fact = self.known.fact(rng)
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

    def documents(self, mixture: Mapping[str, float] = MIXTURE) -> Iterator[Document]:
        makers: list[Callable[[], Document]] = [getattr(self, name) for name in mixture]
        while True:
            yield self.rng.choices(makers, weights=list(mixture.values()))[0]()


class _Encoder:
    """Documents to ids, targets and hints, each a list of one length."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._letters = [self._one(f" {letter.upper()}") for letter in LETTERS]
        self._dot, self._bracket = self._one("."), self._one(" (")

    def _one(self, text: str) -> int:
        (token,) = self._tokenizer.encode(text).ids
        return token

    def encode(self, documents: Sequence[Document]) -> list[tuple[list[int], ...]]:
        given = self._tokenizer.encode_batch([d.given for d in documents])
        learnt = self._tokenizer.encode_batch([d.learnt for d in documents])
        return [self._rows(d, g.ids, a.ids) for d, g, a in zip(documents, given, learnt, strict=True)]

    def _rows(self, document: Document, given: list[int], learnt: list[int]) -> tuple[list[int], ...]:
        ids = given + learnt
        targets = [IGNORED] * len(given) + learnt
        hints = [IGNORED] * len(ids)
        for i in range(1, len(ids), HINT_EVERY):
            hints[i] = ids[i - 1]
        at = 0
        for letter, choice in zip(self._letters, document.choices, strict=False):
            item = [letter, self._dot, *self._tokenizer.encode(f" {choice}").ids]
            while given[at : at + len(item)] != item:
                at += 1
            targets[at] = letter
            hints[at + 2 : at + len(item)] = [letter] * (len(item) - 2)
        for i in range(len(given), len(ids)):
            if ids[i] == self._bracket:
                hints[i] = ids[i - 1]
        return ids, targets, hints


def rows(
    corpus: Corpus, tokenizer: Tokenizer, count: int, mixture: Mapping[str, float] = MIXTURE
) -> Rows:
    """`count` rows of whole documents; what is left of a row is filled up."""
    encoder = _Encoder(tokenizer)
    fillers = (tokenizer.token_to_id(END_OF_TEXT), IGNORED, IGNORED)
    arrays = [np.full((count, ROW + 1), filler, dtype=np.int16) for filler in fillers]
    documents = corpus.documents(mixture)
    row = used = 0
    while row < count:
        for encoded in encoder.encode([next(documents) for _ in range(4096)]):
            end = used + len(encoded[0])
            if end > ROW + 1:
                row, used, end = row + 1, 0, len(encoded[0])
            if row == count:
                break
            for array, values in zip(arrays, encoded, strict=True):
                array[row, used:end] = values
            used = end
    ids, targets, hints = arrays
    return Rows(ids[:, :-1], targets[:, 1:], hints[:, :-1])
