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

_H = "[0-9A-Fa-f]"
_ESCAPE = re.compile(
    rf"(?<!\\)\\++(?:u[dD][89abAB]{_H}{{2}}\\++u[dD][c-fC-F]{_H}{{2}}"
    rf"|u\{{{_H}{{1,6}}\}}|u{_H}{{4}}|U{_H}{{8}}|x{_H}{{2}})"
    rf"|%(?:[0-7]{_H}|[cdCD]{_H}%{_H}{{2}}|[eE]{_H}(?:%{_H}{{2}}){{2}}|[fF]{_H}(?:%{_H}{{2}}){{3}})"
    rf"|&(?:#[0-9]{{1,7}}|#[xX]{_H}{{1,6}}|[A-Za-z][A-Za-z0-9]{{1,31}});"
)
"""One character: by its code or the two halves of it, by its bytes in UTF-8, or by its name."""
_CODE = re.compile(rf"[uUx]\{{?({_H}{{1,8}})")
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


def letters(text: str) -> str:
    """Letters and digits alone, without accents and in small letters; no half escape at the end."""
    read = unicodedata.normalize("NFKD", Normal(_CUT.sub("", text)).text)
    return "".join(filter(str.isalnum, read)).lower()


class Normal:
    """A `text` as it reads, and where each of its characters came from."""

    def __init__(self, text: str) -> None:
        self.text = text
        # From and to, in the text that was given; None where it is the same.
        self._places: list[tuple[int, int]] | None = None
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
        return self._places[start][0], self._places[end - 1][1]

    def span(self, one: Span) -> Span:
        """A span of `text` in the text that was given."""
        return Span(*self.written(one.start, one.end), one.label)

    def _rewrite(self, pattern: re.Pattern[str], read: Callable[[str], Iterator[_Piece]]) -> None:
        text, parts, done = self.text, list[str](), 0
        places: list[tuple[int, int]] = []

        def leave(end: int) -> None:
            parts.append(text[done:end])
            places.extend(self.written(at, at + 1) for at in range(done, end))

        for found in pattern.finditer(text):
            pieces = list(read(found[0]))
            if "".join(part for part, _, _ in pieces) == found[0]:
                continue
            leave(found.start())
            for part, start, end in pieces:
                parts.append(part)
                place = self.written(found.start() + start, found.start() + end)
                places += [place] * len(part)
            done = found.end()
        if parts:
            leave(len(text))
            self.text, self._places = "".join(parts), places


def _unescaped(written: str) -> Iterator[_Piece]:
    if written[0] == "&":
        char = html.unescape(written)
    elif written[0] == "%":
        char = bytes.fromhex(written.replace("%", "")).decode("utf-8", "replace")
    else:
        codes = [chr(min(int(code, 16), 0x10FFFF)) for code in _CODE.findall(written)]
        halves = "".join(codes).encode("utf-16", "surrogatepass")
        char = halves.decode("utf-16", "replace")
    yield char, 0, len(written)


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
