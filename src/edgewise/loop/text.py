"""From ids to text, incrementally: bytes to characters, and stop strings across token borders.

Both states are small immutable values, so that a decoder can keep one per position and rewind.
"""

import codecs
from collections.abc import Sequence
from typing import NamedTuple


class Characters(NamedTuple):
    """Bytes of a character that is not complete yet (at most three)."""

    pending: bytes = b""

    def feed(self, piece: bytes) -> tuple[str, "Characters"]:
        """Decode `piece` behind what is pending; invalid bytes become U+FFFD.

        Over any split of a byte string the texts join to `data.decode("utf-8", "replace")`.
        """
        if not self.pending and piece.isascii():
            return piece.decode("ascii"), self
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(self.pending + piece)
        return text, Characters(decoder.getstate()[0])

    def flush(self) -> str:
        """The text of an unfinished character at the end of an answer."""
        return self.pending.decode("utf-8", "replace")


class Stops(NamedTuple):
    """Text held back because a stop string may be forming in it."""

    held: str = ""

    def feed(self, text: str, stops: Sequence[str]) -> tuple[str, "Stops", str | None]:
        """Returns what can be shown, the next state, and the first stop string that is complete.

        What can be shown never holds any part of a stop string; behind a match nothing is shown.
        """
        if not stops and not self.held:
            return text, self, None
        whole = self.held + text
        matches = [(at, stop) for stop in stops if (at := whole.find(stop)) >= 0]
        if matches:
            at, stop = min(matches)
            return whole[:at], Stops(), stop
        keep = max((_overlap(whole, stop) for stop in stops), default=0)
        return whole[: len(whole) - keep], Stops(whole[len(whole) - keep :]), None


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
