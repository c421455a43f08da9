"""A text as it reads: without what hides its words from a pattern.

Escapes are undone (`\\u0040`, `%40`, `&#64;`), signs that are not seen are left out, and what looks
alike is written alike (Unicode's NFKC: full-width and composed forms).
"""

import html
import re
import unicodedata
from collections.abc import Callable, Iterator

from edgewise.cloud.redaction.base import Span

_DEPTH = 3
"""How often an escape may be escaped itself."""

_ESCAPE = re.compile(
    r"(?:(?<!\\)\\++(?:u\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}))+"
    r"|(?:%[0-9A-Fa-f]{2})+"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
)
_CODE = re.compile(r"[uUx]\{?([0-9A-Fa-f]{2,8})")
# All but what is ASCII, with the letter before it, which an accent may belong to.
_OTHER = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]+")


# They change what stands before them, if anything, and are no signs of a text's.
_UNSEEN = re.compile("[\u034f\u115f\u3164\ufe00-\ufe0f]")

_CUT = re.compile(
    r"(?:\\(?:u[0-9A-Fa-f]{0,3}|x[0-9A-Fa-f]?)?|%[0-9A-Fa-f]?|&#?[xX]?[0-9A-Za-z]{0,8})\Z"
)
"""Half an escape at a text's end."""

_Piece = tuple[str, int, int]
"""What a part of a text reads as, and where it begins and ends."""

_Reading = Callable[[str], Iterator[_Piece]]


def letters(text: str) -> str:
    """Letters and digits alone, without accents and in small letters; no half escape at the end."""
    read = unicodedata.normalize("NFKD", Normal(_CUT.sub("", text)).text)
    return "".join(filter(str.isalnum, read)).lower()


class Normal:
    """A `text` as it reads, and where each of its characters came from."""

    def __init__(self, text: str) -> None:
        self.text = text
        # From and to, in the text that was given; None where it is the same.
        self._places: tuple[list[int], list[int]] | None = None
        for _ in range(_DEPTH):
            before = self.text
            self._rewrite(_ESCAPE, _unescaped)
            self._rewrite(_OTHER, _composed)
            if self.text == before:
                break

    @property
    def same(self) -> bool:
        """Whether it reads as it is written."""
        return self._places is None

    def written(self, start: int, end: int) -> tuple[int, int]:
        """Where characters from `start` to before `end` stand in the text that was given."""
        if self._places is None or start >= end:
            return start, end
        return self._places[0][start], self._places[1][end - 1]

    def span(self, one: Span) -> Span:
        """A span of `text` in the text that was given."""
        return Span(*self.written(one.start, one.end), one.label)

    def _rewrite(self, pattern: re.Pattern[str], read: _Reading) -> None:
        text, parts, done = self.text, list[str](), 0
        starts, ends = list[int](), list[int]()

        def add(part: str, start: int, end: int) -> None:
            parts.append(part)
            if len(part) == end - start:
                starts.extend(range(start, end))
                ends.extend(range(start + 1, end + 1))
            else:
                starts.extend([start] * len(part))
                ends.extend([end] * len(part))

        for found in pattern.finditer(text):
            pieces = list(read(found[0]))
            if all(part == found[0][start:end] for part, start, end in pieces):
                continue
            add(text[done : found.start()], done, found.start())
            for part, start, end in pieces:
                add(part, found.start() + start, found.start() + end)
            done = found.end()
        if parts:
            add(text[done:], done, len(text))
            if self._places is not None:
                before, behind = self._places
                starts, ends = [before[at] for at in starts], [behind[at - 1] for at in ends]
            self.text, self._places = "".join(parts), (starts, ends)


def _unescaped(written: str) -> Iterator[_Piece]:
    if written[0] == "&":
        yield html.unescape(written), 0, len(written)
    elif written[0] == "%":
        yield from _of_bytes(bytes.fromhex(written.replace("%", "")))
    else:
        yield from _of_codes(written)


def _of_bytes(data: bytes) -> Iterator[_Piece]:
    """Each character of `data`, of which a byte was written as three."""
    at = 0
    for char in data.decode("utf-8", "surrogateescape"):
        size = len(char.encode("utf-8", "surrogateescape"))
        shown = "\ufffd" if "\udc80" <= char <= "\udcff" else char
        yield shown, 3 * at, 3 * (at + size)
        at += size


def _of_codes(written: str) -> Iterator[_Piece]:
    start, high = 0, ""
    for found in _CODE.finditer(written):
        end = found.end() + (found[0][1] == "{")
        char = chr(min(int(found[1], 16), 0x10FFFF))
        if "\ud800" <= char <= "\udbff":
            high = char
            continue
        pair = (high + char).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        yield pair, start, end
        start, high = end, ""
    if high:
        yield "\ufffd", start, len(written)


def _composed(written: str) -> Iterator[_Piece]:
    """Letters with their accents, composed; what is not seen is nothing."""
    usual = unicodedata.is_normalized("NFKC", written) and written.isprintable()
    if usual and not _UNSEEN.search(written):
        yield written, 0, len(written)
        return
    start = 0
    for at in range(1, len(written) + 1):
        if at == len(written) or not _joins(written[at]):
            seen = "".join(char for char in written[start:at] if not _is_unseen(char))
            yield unicodedata.normalize("NFKC", seen), start, at
            start = at


def _joins(char: str) -> bool:
    """Whether a character is one with that before it: an accent, or a vowel of Hangul's."""
    return char > "\x7f" and (
        unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff" or _is_unseen(char)
    )


def _is_unseen(char: str) -> bool:
    """Soft hyphens, joiners, marks of direction, selectors of variants, fillers."""
    return char > "\x7f" and (unicodedata.category(char) == "Cf" or _UNSEEN.match(char) is not None)
