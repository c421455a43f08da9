"""What devices were told that ids stand for, by every engine of a gateway.

A gateway has no tokenizer: devices compare, and it sees to it that its engines agree, those that
come later too.
"""

import asyncio
import hashlib
from array import array
from collections.abc import Sequence

from edgewise.engines.base import Engine, Watched
from edgewise.engines.detokenization import FEW, agree
from edgewise.errors import OtherVocabulary

KEPT = 64
"""How many texts are remembered: those of three vocabularies of 150,000 ids."""

LONGEST = 1 << 19
"""Characters of one that is."""


class Spellings:
    """Texts of ids, as the engines made them."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[array[int], str]] = {}

    async def of(self, ids: Sequence[int], engines: Sequence[Engine]) -> str | None:
        """The text that every one of `engines` makes of `ids`; None where one makes none.

        Raises a `CloudError`, `OtherVocabulary` where two differ.
        """
        held = array("I", ids)
        name = hashlib.sha256(held).digest()
        if name in self._known:
            return self._known[name][1]
        told = await asyncio.gather(*(engine.detokenize(ids) for engine in engines))
        texts = [text for text in told if text is not None]
        if not texts or len(texts) < len(told):
            return None
        if not all(_same(text, texts[0]) for text in texts):
            raise OtherVocabulary("The gateway's engines write the same ids differently.")
        if len(texts[0]) <= LONGEST:
            self._known[name] = (held, texts[0])
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        for engine, text in zip(engines, texts, strict=True):
            _watch(engine, held, text)
        return texts[0]

    async def hold(self, engine: Engine) -> bool:
        """Whether an engine that came, or came back, says what devices were told."""
        for ids, text in list(self._known.values()):
            said = await engine.detokenize(ids.tolist())
            if said is None or not _same(said, text):
                return False
            _watch(engine, ids, said)
        return True


def _same(one: str, other: str) -> bool:
    """Of engines of several kinds either may tidy up."""
    return agree(one, other, marks=False) or agree(other, one, marks=False)


def _watch(engine: Engine, ids: "array[int]", text: str) -> None:
    """The first few that were asked are asked again beside consults."""
    if engine.watched is None and len(ids) <= 2 * FEW:
        engine.watched = Watched(ids.tolist(), text)
