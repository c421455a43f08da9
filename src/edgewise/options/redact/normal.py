"""The normalized form of a text, so that patterns find words despite unusual characters.

Invisible characters are left out, and what looks alike is written alike (Unicode's NFKC: full-width
and composed forms).
"""

import re
import unicodedata
from collections.abc import Iterator

from edgewise.cloud.redaction import UNSEEN, Span

# All but what is ASCII, with the letter before it, which an accent may belong to.
_OTHER = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]+")

_Piece = tuple[str, int, int]  # A part of a normalized text, and where its source begins and ends


class Normal:
    """The normalized form of a text (`text`); `span` finds a part of it in the original text."""

    def __init__(self, text: str) -> None:
        parts, places, done = list[str](), list[tuple[int, int]](), 0

        def leave(end: int) -> None:
            parts.append(text[done:end])
            places.extend((at, at + 1) for at in range(done, end))

        for match in _OTHER.finditer(text):
            pieces = list(_composed(match[0]))
            if "".join(part for part, _, _ in pieces) == match[0]:
                continue
            leave(match.start())
            for part, start, end in pieces:
                parts.append(part)
                places += [(match.start() + start, match.start() + end)] * len(part)
            done = match.end()
        self.same = not parts
        """Whether normalizing changed nothing."""
        if parts:
            leave(len(text))
        self.text, self._places = "".join(parts) or text, places

    def span(self, one: Span) -> Span:
        """Return the original text's span for `one`, a span of the normalized `text`."""
        if self.same:
            return one
        return Span(self._places[one.start][0], self._places[one.end - 1][1], one.label)


def _composed(written: str) -> Iterator[_Piece]:
    """Yield letters composed with their accents, and "" for what is invisible."""
    usual = unicodedata.is_normalized("NFKC", written) and written.isprintable()
    if usual and not UNSEEN.search(written):
        yield written, 0, len(written)
        return
    start = 0
    for at in range(1, len(written) + 1):
        if at == len(written) or not _joins(written[at]):
            seen = "".join(char for char in written[start:at] if not _is_unseen(char))
            yield unicodedata.normalize("NFKC", seen), start, at
            start = at


def _joins(char: str) -> bool:
    """Return whether a character belongs to the one before it: an accent, or a Hangul vowel."""
    return char > "\x7f" and (
        unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff" or _is_unseen(char)
    )


def _is_unseen(char: str) -> bool:
    """Return whether a character is invisible: a soft hyphen, joiner, direction mark or filler."""
    return char > "\x7f" and (unicodedata.category(char) == "Cf" or UNSEEN.match(char) is not None)
