"""Whether a question is worded as the bundled pair was trained; what it makes of another is noise.

The pair knows the wordings of its five families and the words that stand in them, and nothing
else. Both are in a file beside its models (`pocket/familiar.py` makes it of the training text):
words that may stand in a slot, and which word follows which, a slot being `*`.
"""

import gzip
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise

import msgspec

SLOT, START = "*", "^"
OUT_OF_DEPTH = (
    "This is not worded as the questions that the bundled pair was taught (the demo shows them), "
    "so its answer is most likely wrong; for other questions name models of your own."
)

LEAST = 0.95
"""Part of a question's neighbouring words that must be known."""

_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")
_LONGEST = 1000
"""Characters; none of the training's questions has as many."""

_ENDS = " \t\n.?!"
_LARGEST = 99
_NUMBER = "0"


class Familiar(msgspec.Struct, frozen=True):
    """The training's words: those of the wordings, those of their slots, and known neighbours."""

    words: frozenset[str]
    slots: frozenset[str]
    pairs: frozenset[str]

    def knows(self, question: str) -> bool:
        """Whether every word was seen in training, and most of them beside each other."""
        if len(question) > _LONGEST:
            return False
        found = [START, *spelled_words(question.strip(_ENDS))]
        forms = [self._forms(word) for word in found]
        if not all(forms):
            return False
        known = [
            any(f"{one} {other}" in self.pairs for one in first for other in second)
            for first, second in pairwise(forms)
        ]
        return bool(known) and sum(known) >= LEAST * len(known)

    def _forms(self, word: str) -> Sequence[str]:
        """What a word may stand as; nothing where it was never seen."""
        plain = (word,) if word in self.words else ()
        return (*plain, SLOT) if word in self.slots else plain


def spelled_words(text: str) -> Iterator[str]:
    """Words, numbers and marks; a number that sums may come to is like any other."""
    for found in _WORD.findall(text):
        small = found.isdecimal() and len(found) <= 2 and int(found) <= _LARGEST
        yield _NUMBER if small else found


@cache
def familiar() -> Familiar:
    """That of the bundled pair."""
    packed = (files("edgewise") / "bundled" / "familiar.json.gz").read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=Familiar)
