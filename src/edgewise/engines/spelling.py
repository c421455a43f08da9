"""What a vocabulary writes for every id, in few texts that an engine can be asked for.

`/detokenize` answers many ids with one text, so ids are asked together, and each so that another
text cannot look the same: part of a character stands between bytes that complete it; a control
token, and an id that stands for nothing, before a letter, so that it cannot change places with its
neighbour; all else in an order drawn at random, where what differs in two ids does not cancel out.
"""

import random
import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple
from weakref import WeakKeyDictionary

from edgewise.edge.base import Tokenizer

AT_ONCE = 8192
"""So many are asked for by one request, each by one to seven ids."""

FEW = 1024
"""Ids of the first request of each kind: they alone are asked again."""

BEYOND = 512
"""So many ids behind the last one must stand for nothing."""

# What may complete a part of a character, each byte an id of its own.
_BEFORE = (b"", b"\xc3", b"\xe3", b"\xe0", b"\xed", b"\xf0", b"\xf4", b"\xf3")
_BEHIND = (b"", b"\x80", b"\xa0", b"\x90", b"\x80\x80", b"\xa0\x80", b"\x90\x80\x80", b"\x80" * 3)

_PADDING = re.compile(r"\[PAD\d+\]")
"""As older converters write an id that stands for nothing."""

_BROKEN = re.compile("\ufffd+")
# Some engines tidy English up; the order is theirs.
_TIDIED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class Batch(NamedTuple):
    """Ids to be compared together. Of `marks` blanks do not count: some engines add them."""

    tokens: Sequence[int]
    marks: bool


class Spelling:
    """What a tokenizer's ids are written as; `nothing` are those that stand for nothing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Reads every id: a tenth of a second or more."""
        self.size = tokenizer.size
        self._special = dict(tokenizer.special)
        self._pieces = {t: tokenizer.piece(t) for t in range(self.size) if t not in self._special}
        self._bytes = {piece: t for t, piece in self._pieces.items() if len(piece) == 1}
        letters = [t for t, piece in self._pieces.items() if piece.isalpha()]
        # One that is no byte by itself, which some engines join with broken ones beside it.
        self._letter = next(
            (t for t in letters if len(self._pieces[t]) > 1), next(iter(letters), None)
        )
        self.ends = frozenset(self.text(token) for token in tokenizer.eos_ids)
        self._around: dict[int, tuple[list[int], str]] = {}
        self._words: list[int] = []
        marks: list[int] = list(self._special)
        for token, piece in self._pieces.items():
            (self._words if self._reads(token, piece) else marks).append(token)
        self.nothing = frozenset(token for token in marks if not self.text(token))
        # Of those that stand for nothing the first are the likeliest to be another's.
        self._marks = sorted(marks, key=lambda token: (not self.text(token), token))
        random.Random(0).shuffle(self._words)

    @property
    def legible(self) -> bool:
        """Whether there is an id for a letter, without which nothing is told apart."""
        return self._letter is not None

    def text(self, token: int) -> str:
        """What an id is written as by itself."""
        special = self._special.get(token)
        told = (
            self._pieces.get(token, b"").decode("utf-8", "replace") if special is None else special
        )
        return _PADDING.sub("", told)

    def asked(self, tokens: Sequence[int]) -> tuple[list[int], str]:
        """Ids that show `tokens`, and the text that they make together."""
        letter = self._letter or 0
        ids, texts = [letter], [self.text(letter)]
        for token in tokens:
            shown, text = self._around.get(token) or self._plain(token)
            ids += shown
            texts.append(text)
        return ids, "".join(texts)

    def parted(self, text: str, batch: Batch) -> str:
        """The text of `asked` without the letters that were put around."""
        letter = self.text(self._letter or 0)
        text = text.removeprefix(letter)
        return text.removesuffix(letter) if batch.marks else text

    def batches(self, size: int) -> Iterator[Batch]:
        """All ids below `size`, which may be more than there are; first the few of each kind."""
        beyond = range(self.size, size)
        marks = [token for token in (*self._marks, *beyond) if token < size]
        words = [token for token in self._words if token < size]
        yield Batch(marks[: FEW // 2], marks=True)
        yield Batch(words[:FEW], marks=False)
        for many, marked, done in ((marks, True, FEW // 2), (words, False, FEW)):
            for start in range(done, len(many), AT_ONCE):
                yield Batch(many[start : start + AT_ONCE], marks=marked)

    def missing(self, size: int) -> int | None:
        """The first id from `size` on that is written as something."""
        return next((token for token in range(size, self.size) if self.text(token)), None)

    def _plain(self, token: int) -> tuple[list[int], str]:
        if token in self._special or not self.text(token):
            letter = self._letter or 0
            return [token, letter], self.text(token) + self.text(letter)
        return [token], self.text(token)

    def _reads(self, token: int, piece: bytes) -> bool:
        """Whether an id is a word; part of a character is completed, or kept apart by letters."""
        if not self.text(token):
            return False
        if _decoded(piece) is None:
            self._around[token] = self._completed(token, piece)
        return True

    def _completed(self, token: int, piece: bytes) -> tuple[list[int], str]:
        for before, behind in product(_BEFORE, _BEHIND):
            text = _decoded(before + piece + behind)
            around = [self._bytes.get(bytes([one])) for one in before + behind]
            known = [one for one in around if one is not None]
            if text is not None and len(known) == len(around):
                return [*known[: len(before)], token, *known[len(before) :]], text
        letter = self._letter or 0
        aside = self.text(letter)
        return [letter, token, letter], f"{aside}{self.text(token)}{aside}"


def agree(said: str, own: str, *, marks: bool) -> bool:
    """Whether an engine says what was expected, however it shows what is no text."""
    one, other = _shown(said, marks=marks), _shown(own, marks=marks)
    return one == other or one == _tidied(other)


def spelling_of(tokenizer: Tokenizer) -> Spelling:
    """As read before, where it was."""
    known = _known.get(tokenizer)
    if known is None:
        known = _known[tokenizer] = Spelling(tokenizer)
    return known


_known: WeakKeyDictionary[Tokenizer, Spelling] = WeakKeyDictionary()


def _shown(text: str, *, marks: bool) -> str:
    text = _BROKEN.sub("\ufffd", text)
    return _PADDING.sub("", text).replace(" ", "") if marks else text


def _tidied(text: str) -> str:
    for ending in _TIDIED:
        text = text.replace(ending, ending.strip())
    return text


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
