"""The families that ask for facts: facts, two-hop, analogy and each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Generic, TypeVar

from pocket import frames
from pocket.facts import Chain, Fact
from pocket.frames import say
from pocket.questions import (
    CHOICES,
    ENDING,
    Question,
    Style,
    Wording,
    chosen,
    framed,
    joined,
    listed,
)

# Rank r is drawn in proportion to (r + ZIPF_SHIFT) ** -ZIPF_EXPONENT.
ZIPF_EXPONENT = 1.0
ZIPF_SHIFT = 30
NEAR = 0.6  # how often a wrong choice comes from the fact's own group
OTHERS = (1, 1, 2)
ASKED_TOO = 0.5  # how often a fact that comes along is asked for, not told
EACH = (3, 4)
T = TypeVar("T")


class Knowledge:
    """Facts and chains, drawn by their rank, and wrong answers to go with them."""

    def __init__(
        self,
        facts: Sequence[Fact],
        chains: Sequence[Chain],
        keep: Callable[[Fact], bool] = lambda fact: True,
    ) -> None:
        """Draws only facts that `keep` keeps, and chains that start from one."""
        self._answers: dict[str, list[str]] = {}
        self._by_hops: dict[str, list[str]] = {}
        for fact in facts:
            self._answers.setdefault(f"group {fact.group}", []).append(fact.answer)
            self._answers.setdefault(f"relation {fact.relation}", []).append(fact.answer)
        for chain in chains:
            self._by_hops.setdefault(chain.second.relation, []).append(chain.answer)
        self._facts = _Ranked([(rank, f) for rank, f in enumerate(facts) if keep(f)])
        self._chains = {
            relation: _Ranked(
                [
                    (rank, c)
                    for rank, c in enumerate(chains)
                    if c.first.relation == relation and keep(c.first)
                ]
            )
            for relation in frames.TWO_HOP_ASKED
        }
        self._of: dict[str, _Ranked[Fact]] = {}
        for key in ("relation", "group"):
            names = {getattr(fact, key) for _, fact in self._facts.ranked}
            for name in names:
                kept = [(r, f) for r, f in self._facts.ranked if getattr(f, key) == name]
                self._of[f"{key} {name}"] = _Ranked(kept)

    def fact(self, rng: Random, relations: Sequence[str] = ()) -> Fact:
        """A fact, of one of `relations` where these are named."""
        while True:
            fact = self._facts.draw(rng)
            if not relations or fact.relation in relations:
                return fact

    def alike(self, fact: Fact, rng: Random, near: float = NEAR) -> Fact:
        """Another fact of the same relation, and with probability `near` of the same group."""
        pool = "group" if rng.random() < near else "relation"
        return self._of[f"{pool} {getattr(fact, pool)}"].draw(rng)

    def chain(self, rng: Random) -> Chain:
        """Two facts in a row."""
        first = self.fact(rng).relation
        while first not in self._chains or not self._chains[first].ranked:
            first = self.fact(rng).relation
        return self.chain_like(first, rng)

    def chain_like(self, relation: str, rng: Random) -> Chain:
        """Two facts in a row, the first of them of `relation`."""
        return self._chains[relation].draw(rng)

    def wrong(self, fact: Fact, rng: Random) -> list[str]:
        """Four wrong answers, each as often as it is right elsewhere; never one that is true."""
        taken = {fact.answer, fact.subject, *fact.also_true}
        drawn = list(fact.tempting)
        while len(drawn) < CHOICES - 1:
            pool = "group" if rng.random() < NEAR else "relation"
            word = rng.choice(self._answers[f"{pool} {getattr(fact, pool)}"])
            if word not in taken and word not in drawn:
                drawn.append(word)
        return drawn

    def wrong_end(self, chain: Chain, rng: Random) -> list[str]:
        """Four wrong ends of a chain."""
        true = chain.first.also_true | chain.second.also_true
        taken = {chain.answer, chain.between, chain.asked, *true}
        drawn: list[str] = []
        while len(drawn) < CHOICES - 1:
            word = rng.choice(self._by_hops[chain.second.relation])
            if word not in taken and word not in drawn:
                drawn.append(word)
        return drawn


class _Ranked(Generic[T]):
    """Things with their ranks, drawn by Zipf's law."""

    def __init__(self, ranked: list[tuple[int, T]]) -> None:
        self.ranked = ranked
        self._weights: list[float] = []

    def draw(self, rng: Random) -> T:
        if len(self._weights) != len(self.ranked):
            weights = ((rank + ZIPF_SHIFT) ** -ZIPF_EXPONENT for rank, _ in self.ranked)
            self._weights = list(accumulate(weights))
        return rng.choices(self.ranked, cum_weights=self._weights)[0][1]


def state(fact: Fact, rng: Random) -> str:
    """One sentence that states a fact."""
    return say(frames.STATED[fact.relation], rng, x=fact.subject, y=fact.answer)


def stated(facts: Sequence[Fact], rng: Random, style: Style) -> str:
    """One after the other; notes keep to one form."""
    if style == "notes":
        form = [rng.choice(frames.NOTED)]
        return " ".join(say(form, rng, x=f.subject, y=f.answer) for f in facts)
    return " ".join(state(fact, rng) for fact in facts)


def mentioned(fact: Fact, wording: Wording, rng: Random) -> str:
    """A fact that comes along: the question tells it, or asks for it although it does not count."""
    if rng.random() < ASKED_TOO:
        return wording.asked(frames.BEFORE, rng, z=fact.subject)
    told = say(frames.PLAIN[fact.relation], rng, x=fact.subject, y=fact.answer)
    return wording.asked(frames.GIVEN, rng, s=told)


def hops(chain: Chain, rng: Random, *, linked: bool) -> str:
    """Both facts of a chain, one after the other."""
    first = state(chain.first, rng)
    link = say(frames.LINKS, rng) if linked else ""
    return joined(first, link, state(chain.second, rng))


def facts(known: Knowledge, wording: Wording, rng: Random) -> Question:
    """One fact, five choices; unless the answer is to be short, other facts come before it."""
    style = rng.choice(wording.styles)
    fact = known.fact(rng)
    choices = [fact.answer, *known.wrong(fact, rng)]
    rng.shuffle(choices)
    others: dict[str, Fact] = {}
    for _ in range(rng.choice(OTHERS) if style != "short" else 0):
        other = known.alike(fact, rng)
        if other.subject != fact.subject:
            others[other.subject] = other
    parts = [mentioned(other, wording, rng) for other in others.values()]
    parts.append(wording.asked(frames.ASKED[fact.relation], rng, x=fact.subject))
    said = stated([*others.values(), fact], rng, style)
    cue = wording.cue(style, rng)
    about = (*others, fact.subject)
    return chosen("facts", style, " ".join(parts), choices, fact.answer, said, cue, rng, about)


def analogy(known: Knowledge, wording: Wording, rng: Random) -> Question:
    """One thing is to another as a third one is to which of five."""
    style = rng.choice(wording.styles)
    fact = known.fact(rng)
    like = known.alike(fact, rng)
    while like.subject == fact.subject:
        like = known.alike(fact, rng)
    choices = [fact.answer, *known.wrong(fact, rng)]
    rng.shuffle(choices)
    words = {"a": like.subject, "b": like.answer, "x": fact.subject}
    asks = wording.asked(frames.ANALOGY_ASKED, rng, **words)
    said = stated([fact] if style == "short" else [like, fact], rng, style)
    cue = wording.cue(style, rng)
    about = (like.subject, fact.subject)
    return chosen("analogy", style, asks, choices, fact.answer, said, cue, rng, about)


def two_hop(known: Knowledge, wording: Wording, rng: Random) -> Question:
    """Two facts in a row, five choices; unless it is to be short, another chain comes first."""
    style = rng.choice(wording.styles)
    chain = known.chain(rng)
    choices = [chain.answer, *known.wrong_end(chain, rng)]
    rng.shuffle(choices)
    asks = wording.asked(frames.TWO_HOP_ASKED[chain.first.relation], rng, x=chain.asked)
    told = [chain]
    other = known.chain_like(chain.first.relation, rng)
    if style != "short" and other.asked != chain.asked:
        told.insert(0, other)
        asks = f"{wording.asked(frames.BEFORE, rng, z=other.asked)} {asks}"
    said = {
        "explain": lambda: joined(*(hops(c, rng, linked=True) for c in told)),
        "short": lambda: hops(chain, rng, linked=False),
        "notes": lambda: " ".join(f"{c.asked}: {c.between}: {c.answer};" for c in told),
    }[style]()
    cue = wording.cue(style, rng)
    about = tuple(c.first.subject for c in told)
    return chosen("two-hop", style, asks, choices, chain.answer, said, cue, rng, about)


def each(known: Knowledge, wording: Wording, rng: Random) -> Question:
    """Free text: what each of some things is."""
    style = rng.choice(wording.styles)
    items: list[Fact] = []
    size = rng.choice(EACH)
    while len(items) < size:
        fact = known.fact(rng, ("kind", "element"))
        if fact.subject not in {f.subject for f in items}:
            items.append(fact)
    asks = wording.asked(frames.EACH_ASKED, rng, items=listed([f.subject for f in items]))
    return Question(
        family="each",
        style=style,
        prompt=f"Question: {asks} {wording.cue(style, rng)} {ENDING}",
        answer=pattern([(f.subject, f.answer) for f in items]),
        reference=framed(stated(items, rng, style), "", style, rng),
        check="regex",
        about=tuple(f.subject for f in items),
    )


def pattern(pairs: Sequence[tuple[str, str]]) -> str:
    """What matches a text with a sentence, or a note, for each pair that names both."""
    each_of = (
        rf"(?=(?s:.*)(?:\b{x}\b[^.;]*\b{y}\b|\b{y}\b[^.;]*\b{x}\b))"
        for x, y in ((re.escape(x), re.escape(y)) for x, y in pairs)
    )
    return rf"\A{''.join(each_of)}"
