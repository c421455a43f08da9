"""The training text: an endless, seeded mixture of documents, and rows of tokens made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

import numpy as np
from tokenizers import Tokenizer

from pocket import families, frames
from pocket.facts import Chain, Fact
from pocket.families import Knowledge, state
from pocket.frames import say
from pocket.questions import Question, Wording, reserved
from pocket.steps import steps
from pocket.tokenizer import END_OF_TEXT, Vocabulary

ROW = 256
IGNORED = -100
MIXTURE = {
    "facts": 0.18,
    "two_hop": 0.17,
    "analogy": 0.17,
    "each": 0.13,
    "steps": 0.28,
    "statement": 0.03,
    "about": 0.03,
    "small_talk": 0.01,
}


@dataclass(frozen=True)
class Document:
    """What is answered, if anything, and the text that the loss is taken on."""

    prompt: str | None
    learnt: str

    def given(self, vocabulary: Vocabulary) -> str:
        """What stands before `learnt`."""
        return END_OF_TEXT if self.prompt is None else vocabulary.chat(self.prompt)

    def closed(self, vocabulary: Vocabulary) -> str:
        """`learnt` and, behind an answer, its end."""
        return self.learnt if self.prompt is None else self.learnt + vocabulary.end


class Corpus:
    """Draws documents; the same seed gives the same documents."""

    def __init__(self, facts: list[Fact], chains: list[Chain], seed: int) -> None:
        self.rng = Random(seed)
        self.known = Knowledge(facts, chains)
        self._by_subject: dict[str, list[Fact]] = {}
        self._of_kind: dict[str, list[str]] = {}
        for fact in facts:
            self._by_subject.setdefault(fact.subject, []).append(fact)
            self._of_kind.setdefault(fact.answer, []).append(fact.subject)

    def facts(self) -> Document:
        return self._asked(families.facts)

    def two_hop(self) -> Document:
        return self._asked(families.two_hop)

    def analogy(self) -> Document:
        return self._asked(families.analogy)

    def each(self) -> Document:
        return self._asked(families.each)

    def steps(self) -> Document:
        return self._asked(lambda _, wording, rng: steps(wording, rng))

    def _asked(self, draw: Callable[[Knowledge, Wording, Random], Question]) -> Document:
        """A question whose prompt is not reserved for the frozen set."""
        while reserved((asked := draw(self.known, Wording(), self.rng)).prompt):
            pass
        return Document(asked.prompt, asked.reference)

    def statement(self) -> Document:
        return Document(None, state(self.known.fact(self.rng), self.rng))

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
        return Document(prompt, " ".join(told))

    def small_talk(self) -> Document:
        prompt, answer = self.rng.choice(list(frames.SMALL_TALK.items()))
        return Document(prompt, answer)

    def documents(self) -> Iterator[Document]:
        makers: list[Callable[[], Document]] = [getattr(self, name) for name in MIXTURE]
        while True:
            yield self.rng.choices(makers, weights=list(MIXTURE.values()))[0]()


def _encode(
    documents: list[Document], vocabulary: Vocabulary, tokenizer: Tokenizer
) -> list[tuple[list[int], int]]:
    """The ids of each document and how many of them are given."""
    given = tokenizer.encode_batch([d.given(vocabulary) for d in documents])
    learnt = tokenizer.encode_batch([d.closed(vocabulary) for d in documents])
    return [(g.ids + a.ids, len(g)) for g, a in zip(given, learnt, strict=True)]


def rows(
    corpus: Corpus, vocabulary: Vocabulary, tokenizer: Tokenizer, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """`count` rows of whole documents: ids and targets, each int16[count, ROW].

    `targets[i, t]` is the id that follows `ids[i, t]`, or IGNORED.
    """
    filler = tokenizer.token_to_id(END_OF_TEXT)
    ids = np.full((count, ROW + 1), filler, dtype=np.int16)
    targets = np.full((count, ROW + 1), IGNORED, dtype=np.int16)
    documents = corpus.documents()
    row = used = 0
    while row < count:
        for encoded, given in _encode(list(islice(documents, 4096)), vocabulary, tokenizer):
            if used + len(encoded) > ROW + 1:
                row, used = row + 1, 0
            if row == count:
                break
            end = used + len(encoded)
            ids[row, used:end] = encoded
            targets[row, used + given : end] = encoded[given:]
            used = end
    return ids[:, :-1], targets[:, 1:]
