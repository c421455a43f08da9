"""Comparing all ids of a vocabulary with an engine's, where the engine detokenizes.

`/detokenize` answers many ids with one text, so ids are asked together, and each so that another
text cannot look the same: part of a character stands between bytes that complete it; a control
token, and an id that stands for nothing, before a letter, so that it cannot change places with its
neighbour; all else in an order drawn at random, where what differs in two ids does not cancel out.

Once all were compared, a file in the user's cache says so, and the next start asks for a few.
"""

import asyncio
import hashlib
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from edgewise.edge.base import Tokenizer
from edgewise.edge.llamacpp.load import cache_folder
from edgewise.edge.vocabulary import fingerprint
from edgewise.engines.base import Client, Engine, Watched, parallel
from edgewise.errors import CloudError, CloudProtocolError, CloudRejected, VocabularyMismatch

COMPARE_SECONDS = 20.0
"""How long comparing may take; what is proven until then is what counts."""

IN_PARALLEL = 4
"""Requests in parallel: a link may be long."""

KEPT = 256
"""How many proofs are remembered."""

_SHOWN = 40

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


class Detokenization:
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
        """Whether there is an id for a letter, which keeps others apart."""
        return self._letter is not None

    def text(self, token: int) -> str:
        """What an id is written as by itself."""
        special = self._special.get(token)
        if special is None:
            special = self._pieces.get(token, b"").decode("utf-8", "replace")
        return _PADDING.sub("", special)

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


async def compare_all(engine: Engine, tokenizer: Tokenizer) -> str:
    """How far ids were compared, in words that go behind what else was.

    Raises `VocabularyMismatch`, or a `CloudError` where the engine is gone.
    """
    texts = detokenization_of(tokenizer)
    if not texts.legible:
        return "; its ids are not compared one by one, since none stands for a letter"
    comparison = _Comparison(engine, texts)
    record = _record(engine, tokenizer)
    known = record is not None and record.is_file()
    try:
        async with asyncio.timeout(COMPARE_SECONDS):
            count = await comparison.run(few=known)
    except TimeoutError:
        return _not_all(f"it took longer than {COMPARE_SECONDS:g} s")
    except CloudError as error:
        answered = error.declined or isinstance(error, CloudProtocolError | CloudRejected)
        if not answered:
            raise
        return _not_all(error.message.rstrip("."))
    if count is None:
        return "; its other ids are not proven, since it does not detokenise"
    if known:
        return f"; all {texts.size:,} ids were compared before, {count:,} of them again"
    _remember(record)
    return f"; all {texts.size:,} ids stand for the same"


class _Comparison:
    """One engine's ids against a vocabulary's, batch by batch."""

    def __init__(self, engine: Engine, texts: Detokenization) -> None:
        self._engine, self._texts = engine, texts
        self._client = Client(end=time.monotonic() + COMPARE_SECONDS)

    async def run(self, *, few: bool) -> int | None:
        """How many ids were compared, None where the engine does not detokenise.

        With `few` only the first ones of each kind are.
        """
        texts, size = self._texts, self._engine.described.size
        self._require_room(size)
        marks, words, *others = texts.batches(min(size or texts.size, texts.size + AT_ONCE))
        beyond = [self._require_nothing_beyond()] if size is None else []
        _, detokenises, *_ = await parallel(
            self._require_end(), self._compared(marks, watch=True), self._compared(words), *beyond
        )
        if not detokenises:
            return None
        compared = [marks, words]
        if not few:
            await self._compare_all(others)
            compared += others
        return sum(len(batch.tokens) for batch in compared)

    async def _compare_all(self, batches: Sequence[Batch]) -> None:
        for start in range(0, len(batches), IN_PARALLEL):
            await parallel(*map(self._compared, batches[start : start + IN_PARALLEL]))

    async def _require_end(self) -> None:
        """What ends the cloud's answers must end the edge's."""
        end = await self._engine.end_text()
        if end and end not in self._texts.ends:
            raise VocabularyMismatch(
                f"The cloud model at {self._engine.url!r} ends an answer with {end[:_SHOWN]!r}, "
                "which ends none of the edge model's",
                hint="choose two models of one family, or name its own tokenizer",
                setting="cloud_tokenizer",
            )

    async def _compared(self, batch: Batch, *, watch: bool = False) -> bool:
        """False where the engine does not detokenise; raises `VocabularyMismatch`."""
        if not batch.tokens:
            return True
        ids, own = self._texts.asked(batch.tokens)
        said = await self._engine.detokenize(ids, self._client)
        if said is None:
            return False
        if not agree(said, own, marks=batch.marks):
            raise await self._first_other(batch)
        if watch:
            self._engine.watched = Watched(ids, said)
        return True

    async def _first_other(self, batch: Batch) -> VocabularyMismatch:
        """By halves."""
        tokens = batch.tokens
        while len(tokens) > 1:
            first = tokens[: len(tokens) // 2]
            said, own = await self._both(first)
            tokens = tokens[len(first) :] if agree(said, own, marks=batch.marks) else first
        (token,) = tokens
        said, own = await self._both(tokens)
        one, other = (self._texts.parted(text, batch)[:_SHOWN] for text in (said, own))
        return self._other(f"writes {one!r} where the edge model has {other!r}", token)

    async def _both(self, tokens: Sequence[int]) -> tuple[str, str]:
        ids, own = self._texts.asked(tokens)
        return await self._engine.detokenize(ids, self._client) or "", own

    async def _require_nothing_beyond(self) -> None:
        """Behind the last id, where it does not say how many it has; it may decline such ids."""
        size = self._texts.size
        try:
            await self._compared(Batch(range(size, size + BEYOND), marks=True))
        except CloudError as error:
            if not error.declined:
                raise

    def _require_room(self, size: int | None) -> None:
        missing = None if size is None else self._texts.missing(size)
        if missing is not None:
            text = self._texts.text(missing)[:_SHOWN]
            raise self._other(f"has no such id where the edge model has {text!r}", missing)

    def _other(self, what: str, token: int) -> VocabularyMismatch:
        return VocabularyMismatch(
            f"The cloud model at {self._engine.url!r} {what} (id {token}), so their vocabularies "
            "differ",
            hint="choose two models of one family, or name its own tokenizer",
            setting="cloud_tokenizer",
        )


def _not_all(why: str) -> str:
    return f"; its other ids are not proven ({why})"


def _record(engine: Engine, tokenizer: Tokenizer) -> Path | None:
    """The file that says that all ids were compared; None for a user without a home."""
    folder = cache_folder("proven")
    held = f"{engine.url}\n{engine.remembered_by()}\n{fingerprint(tokenizer)}"
    return folder and folder / hashlib.sha256(held.encode("utf-8", "replace")).hexdigest()


def _remember(record: Path | None) -> None:
    # Where that cannot be kept, the next start compares again.
    with suppress(OSError):
        if record is not None:
            record.parent.mkdir(parents=True, exist_ok=True)
            record.touch()
            kept = sorted(record.parent.iterdir(), key=lambda one: one.stat().st_mtime_ns)
            for old in kept[:-KEPT]:
                old.unlink(missing_ok=True)


def agree(said: str, own: str, *, marks: bool) -> bool:
    """Whether an engine says what was expected, however it shows what is no text."""
    one, other = _shown(said, marks=marks), _shown(own, marks=marks)
    return one == other or one == _tidied(other)


def detokenization_of(tokenizer: Tokenizer) -> Detokenization:
    """As read before, where it was."""
    known = _known.get(tokenizer)
    if known is None:
        known = _known[tokenizer] = Detokenization(tokenizer)
    return known


_known: WeakKeyDictionary[Tokenizer, Detokenization] = WeakKeyDictionary()


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
