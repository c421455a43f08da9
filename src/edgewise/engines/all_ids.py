"""That an engine means by every id what a tokenizer does: all of them, where it detokenises.

Once all were compared, a file by that engine and vocabulary says so, and a start asks for a few.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edgewise.edge.base import Tokenizer
from edgewise.edge.llamacpp.sandbox import cache_folder
from edgewise.edge.vocabulary import fingerprint
from edgewise.engines.base import Client, Described, Watched, side_by_side
from edgewise.engines.spelling import AT_ONCE, BEYOND, Batch, Spelling, agree, spelling_of
from edgewise.errors import CloudError, CloudProtocolError, CloudRejected, VocabularyMismatch

COMPARE_SECONDS = 20.0
"""How long comparing may take; what is proven until then is what counts."""

TOGETHER = 4
"""Requests side by side: a link may be long."""

KEPT = 256
"""How many proofs are remembered."""

_SHOWN = 40


class Speller(Protocol):
    """What can be asked how it writes ids: an engine, or a gateway before one."""

    url: str
    described: Described
    watched: Watched | None

    def remembered_by(self) -> str:
        """What tells it from any other, as far as it says."""
        ...

    async def detokenize(self, ids: Sequence[int], client: Client) -> str | None:
        """The text of `ids`, control tokens shown; None where it does not detokenise.

        Raises a `CloudError`.
        """
        ...

    async def end_text(self) -> str | None:
        """How the token is written with which it ends an answer; None where it does not say."""
        ...


async def compare_all(engine: Speller, tokenizer: Tokenizer) -> str:
    """How far ids were compared, in words that go behind what else was.

    Raises `VocabularyMismatch`, or a `CloudError` where the engine is gone.
    """
    spelling = spelling_of(tokenizer)
    if not spelling.legible:
        return "; its ids are not compared one by one, since none stands for a letter"
    comparison = _Comparison(engine, spelling)
    record = _record(engine, tokenizer)
    known = record is not None and record.is_file()
    try:
        async with asyncio.timeout(COMPARE_SECONDS):
            count = await comparison.run(few=known)
    except TimeoutError:
        return _not_all(f"it took longer than {COMPARE_SECONDS:g} s")
    except CloudError as error:
        told = isinstance(error, CloudRejected | CloudProtocolError) or error.declined
        if not told:
            raise
        return _not_all(error.message.rstrip("."))
    if count is None:
        return "; its other ids are not proven, since it does not detokenise"
    if known:
        return f"; all {spelling.size:,} ids were compared before, {count:,} of them again"
    _remember(record)
    return f"; all {spelling.size:,} ids stand for the same"


class _Comparison:
    """One engine's ids against a vocabulary's, batch by batch."""

    def __init__(self, engine: Speller, spelling: Spelling) -> None:
        self._engine, self._spelling = engine, spelling
        self._client = Client(end=time.monotonic() + COMPARE_SECONDS)

    async def run(self, *, few: bool) -> int | None:
        """How many ids were compared, None where the engine does not detokenise.

        With `few` only the first ones of each kind are.
        """
        spelling, told = self._spelling, self._engine.described.size
        self._require_room(told)
        marks, words, *others = spelling.batches(
            min(told or spelling.size, spelling.size + AT_ONCE)
        )
        async with side_by_side() as requests:
            requests.begin(self._require_end())
            detokenises = requests.begin(self._compared(marks, watch=True))
            requests.begin(self._compared(words))
            if told is None:
                requests.begin(self._require_nothing_beyond())
        if not detokenises.result():
            return None
        compared = [marks, words]
        if not few:
            await self._compare_all(others)
            compared += others
        return sum(len(batch.tokens) for batch in compared)

    async def _compare_all(self, batches: Sequence[Batch]) -> None:
        for start in range(0, len(batches), TOGETHER):
            async with side_by_side() as requests:
                for batch in batches[start : start + TOGETHER]:
                    requests.begin(self._compared(batch))

    async def _require_end(self) -> None:
        """What ends the cloud's answers must end the edge's."""
        end = await self._engine.end_text()
        if end and end not in self._spelling.ends:
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
        ids, own = self._spelling.asked(batch.tokens)
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
            said, own = await self._texts(first)
            tokens = tokens[len(first) :] if agree(said, own, marks=batch.marks) else first
        (token,) = tokens
        said, own = await self._texts(tokens)
        one, other = (self._spelling.parted(text, batch)[:_SHOWN] for text in (said, own))
        return self._other(f"writes {one!r} where the edge model has {other!r}", token)

    async def _texts(self, tokens: Sequence[int]) -> tuple[str, str]:
        ids, own = self._spelling.asked(tokens)
        return await self._engine.detokenize(ids, self._client) or "", own

    async def _require_nothing_beyond(self) -> None:
        """Behind the last id, where it does not say how many it has; it may decline such ids."""
        size = self._spelling.size
        try:
            await self._compared(Batch(range(size, size + BEYOND), marks=True))
        except CloudError as error:
            if not error.declined:
                raise

    def _require_room(self, told: int | None) -> None:
        missing = None if told is None else self._spelling.missing(told)
        if missing is not None:
            text = self._spelling.text(missing)[:_SHOWN]
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


def _record(engine: Speller, tokenizer: Tokenizer) -> Path | None:
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
