"""How the models' training text asks: `python -m pocket.familiar` writes familiar.json.gz.

By it the bundled pair tells a question that it was never taught to answer
(`src/edgewise/prompts/familiar.py`). Needs WordNet's files, as `pocket.build` does, but no torch.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path

from edgewise.prompts.familiar import SLOT, START, spelled_words
from pocket import frames
from pocket.corpus import Corpus
from pocket.facts import Chain, Fact, all_facts, chains
from pocket.questions import ENDING
from pocket.wordnet import WordNet

PLACE = Path(__file__).parents[1] / "src" / "edgewise" / "bundled" / "familiar.json.gz"
DOCUMENTS = 200_000
_HOLE = re.compile(r"\{\w+\}")
_WORDINGS = (
    *(frames.ASKED, frames.PLAIN, frames.CUES, frames.GIVEN, frames.BEFORE),
    *(frames.TWO_HOP_ASKED, frames.ANALOGY_ASKED, frames.EACH_ASKED, frames.NAMES, frames.ITEMS),
    *(frames.START, frames.CHANGES, frames.HOW_MANY, frames.TOLD_ABOUT, list(frames.SMALL_TALK)),
    *("Question: Choices: and", ENDING),
)
"""All that a question is made of, but for the words in its slots."""


def familiar(
    facts: list[Fact], hops: list[Chain], seed: int, documents: int = DOCUMENTS
) -> dict[str, list[str]]:
    """Words of the wordings, words of their slots, and which of them stand side by side."""
    own = {word for text in _texts(_WORDINGS) for word in spelled_words(_HOLE.sub(" ", text))}
    named = {word for fact in facts for word in _names(fact)}
    pairs: set[tuple[str, str]] = set()
    for document in islice(Corpus(facts, hops, seed).documents(), documents):
        if document.prompt is not None:
            words = [START, *spelled_words(document.prompt)]
            told = [SLOT if word in named and word not in own else word for word in words]
            pairs |= set(pairwise(told))
    words = {word for pair in pairs for word in pair} - {SLOT}
    neighbours = sorted(" ".join(pair) for pair in pairs)
    return {"words": sorted(words), "slots": sorted(named), "pairs": neighbours}


def write(path: Path, found: dict[str, list[str]]) -> None:
    """Compressed without a time stamp: equal lists are equal files."""
    path.write_bytes(gzip.compress(json.dumps(found, ensure_ascii=False).encode(), mtime=0))


def _names(fact: Fact) -> Iterator[str]:
    for name in (fact.subject, fact.answer, *fact.tempting):
        yield from spelled_words(name)


def _texts(told: object) -> Iterator[str]:
    """Every wording of the tables."""
    if isinstance(told, str):
        yield told
    elif isinstance(told, dict):
        yield from _texts(list(told.values()))
    elif isinstance(told, Iterable):
        for one in told:
            yield from _texts(one)


def main() -> None:
    facts = all_facts(WordNet())
    write(PLACE, familiar(facts, chains(facts), seed=1))


if __name__ == "__main__":
    main()
