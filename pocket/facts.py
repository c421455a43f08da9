"""What the pair may know: WordNet's kinds and parts, capitals, continents, elements.

Facts are ranked, common ones first; training sees them by a Zipf law over the ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pocket.wordnet import WordNet

Relation = Literal["kind", "part", "capital", "continent", "element", "family"]

DATA = Path(__file__).parent / "data"
# Lexicographer files: animal, artifact, body, food, object, plant, substance (lexnames(5WN)).
THINGS = frozenset(["05", "06", "08", "13", "17", "20", "27"])
# Hypernyms that fit nearly anything make questions with several right choices.
VAGUE = frozenset(
    "agent area artifact body case commodity compound creation device equipment group instrument "
    "material object part product release solid structure substance support thing unit work".split()
)
# Words that a family product would not put before a newcomer.
UNWANTED = frozenset(
    "bawdyhouse bitch bordello brothel condom dildo genitalia hooker penis pessary prick stripper "
    "vagina vulva whorehouse".split()
)
KINDS = 2_400
PARTS = 200
SMALLEST_GROUP = 4
LONGEST_WORD = 11


@dataclass(frozen=True)
class Fact:
    """One thing a model can know: `subject` stands in `relation` to `answer`."""

    relation: Relation
    subject: str
    answer: str
    group: str
    """Distractors come from the same group first."""
    also_true: frozenset[str] = frozenset()
    """Answers that must not be offered as wrong choices."""
    tempting: tuple[str, ...] = ()
    """Wrong answers that are always offered."""


@dataclass(frozen=True)
class Chain:
    """Two facts in a row: from `asked` over `between` to `answer`."""

    first: Fact
    second: Fact

    @property
    def asked(self) -> str:
        return self.first.answer if self.first.relation == "capital" else self.first.subject

    @property
    def between(self) -> str:
        return self.second.subject

    @property
    def answer(self) -> str:
        return self.second.answer


def _plain(word: str) -> bool:
    short = 3 <= len(word) <= LONGEST_WORD
    return short and word.isalpha() and word.islower() and word not in UNWANTED


def _tell_apart(word: str, other: str) -> bool:
    """Neither names the other, as `rainwater` and `water` do."""
    return _plain(word) and _plain(other) and word not in other and other not in word


def kinds(wordnet: WordNet, limit: int = KINDS) -> list[Fact]:
    """The `limit` most used nouns with the hypernym of their first sense."""
    found: list[Fact] = []
    for word in wordnet.senses:
        first = wordnet.first(word)
        if first.lexfile not in THINGS or not first.parents or word not in first.words:
            continue
        answer = wordnet.plainly(first.parents[0])
        if answer and answer not in VAGUE and _tell_apart(word, answer):
            found.append(Fact("kind", word, answer, first.lexfile, wordnet.above(word)))
    sizes = Counter(fact.answer for fact in found)
    grouped = [fact for fact in found if sizes[fact.answer] >= SMALLEST_GROUP]
    return sorted(grouped, key=lambda fact: _rank(wordnet, fact))[:limit]


def parts(wordnet: WordNet, limit: int = PARTS) -> list[Fact]:
    """The `limit` most used nouns that are a part of exactly one thing."""
    found: list[Fact] = []
    for word in wordnet.senses:
        first = wordnet.first(word)
        if first.lexfile not in THINGS or len(first.wholes) != 1 or word not in first.words:
            continue
        answer = wordnet.plainly(first.wholes[0])
        if answer and wordnet.first(answer).lexfile in THINGS and _tell_apart(word, answer):
            also = frozenset(
                whole
                for sense in wordnet.senses[word]
                for offset in wordnet.synsets[sense].wholes
                for whole in wordnet.synsets[offset].words
            )
            found.append(Fact("part", word, answer, "part", also | wordnet.above(answer)))
    return sorted(found, key=lambda fact: _rank(wordnet, fact))[:limit]


def _rank(wordnet: WordNet, fact: Fact) -> tuple[int, int, str]:
    """Much used first, then many senses, then in no order that spelling would show."""
    shuffled = sha256(fact.subject.encode()).hexdigest()
    return -wordnet.usage[fact.subject], -len(wordnet.senses[fact.subject]), shuffled


def _table(name: str) -> Iterable[list[str]]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return (line.split("\t") for line in lines[1:])


def countries() -> tuple[list[Fact], list[Fact]]:
    """Capitals, and continents where a country lies on one."""
    rows = list(_table("countries.tsv"))
    capitals = [
        Fact("capital", country, capital, "capital", tempting=(largest,) if largest else ())
        for country, capital, _, largest in rows
    ]
    return capitals, [Fact("continent", c, where, "continent") for c, _, where, _ in rows if where]


def elements() -> tuple[list[Fact], list[Fact]]:
    """What symbols stand for, and families where they are not disputed."""
    rows = list(_table("elements.tsv"))
    names = [Fact("element", symbol, name, "element") for symbol, name, _ in rows]
    return names, [Fact("family", name, family, "family") for _, name, family in rows if family]


def all_facts(wordnet: WordNet) -> list[Fact]:
    """All facts, common ones first: each source is spread evenly over the ranks."""
    sources = [kinds(wordnet), parts(wordnet), *countries(), *elements()]
    ranked = [
        (i / len(facts), n, fact) for n, facts in enumerate(sources) for i, fact in enumerate(facts)
    ]
    return [fact for _, _, fact in sorted(ranked, key=lambda item: item[:2])]


def chains(facts: list[Fact]) -> list[Chain]:
    """Every pair of facts that makes a question of two hops, in the order of the first."""
    by_subject = {(fact.relation, fact.subject): fact for fact in facts}
    found: list[Chain] = []
    for fact in facts:
        if fact.relation in ("kind", "part"):
            second = by_subject.get(("kind", fact.answer))
        elif fact.relation == "capital":
            second = by_subject.get(("continent", fact.subject))
        else:
            second = by_subject.get(("family", fact.answer)) if fact.relation == "element" else None
        if second:
            found.append(Chain(fact, second))
    return found
