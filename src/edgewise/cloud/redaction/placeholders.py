"""Placeholders: what stands for a conversation's private words where the cloud reads it.

`<EMAIL_1>` stands for one word, the first of its class, wherever it occurs. What a text itself
has that could be taken for a placeholder is given one, so nothing in it can forge one.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from edgewise.cloud.bridge.context_filter import Restored
from edgewise.cloud.redaction.base import Span
from edgewise.cloud.redaction.normal import Normal, letters

LITERAL = "TEXT"
"""The label of what only looks like a placeholder."""

_LONGEST = 80
"""Characters of the longest placeholder, however it is written."""

_ANYWHERE = 8
"""Characters of a word that is found inside of others, too."""

_SHORTEST = 3
"""Characters of a word that is looked for again where no detector sees it."""

_OPENS, _CLOSES = r"(?:<|\uff1c|&lt;)", r"(?:>|\uff1e|&gt;)"
_BETWEEN = r"(?:\\?[\s_-]){0,3}"


_CALL = re.compile(r"<tool_call>|\[TOOL_CALLS\]|<function=|<\|python_tag\|>")
_CALL_ENDS = "</tool_call>"
_BARE_CALL = re.compile(
    r"\s{0,9}\{\s{0,9}\"name\"\s{0,9}:\s{0,9}\"[^\"]{0,200}\",\s{0,9}\"(?:arguments|parameters)\"\s{0,9}:"
)
"""How models begin calls of tools, and that of a family with no sign before it."""

_NUMBER = re.compile(r"(?:\\)?_\d{1,6}")


class Like(NamedTuple):
    """From `start` to before `end`: a placeholder, where it has a `label` and a `number`."""

    start: int
    end: int
    label: str | None = None
    number: int = 0


class Forms:
    """How placeholders of these labels are written, and what comes too close to one."""

    def __init__(self, labels: Iterable[str]) -> None:
        self.labels = sorted({*labels, LITERAL}, key=lambda one: (-len(one), one))
        names = "|".join(map(re.escape, self.labels))
        # It begins with its first characters alone, which are looked for fast.
        self._whole = re.compile(
            rf"[<\uff1c&\[](?:(?<!\[)(?:(?<!&)|lt;)\s{{0,3}}(?i:({names}){_BETWEEN}(\d{{1,6}})"
            rf"\s{{0,3}}{_CLOSES})|(?<=[<\[])(?:{names}|REDACTED|MASKED)[>\]])"
        )
        self._open = re.compile(
            rf"(?i:({_OPENS}\s{{0,3}}|\[)([A-Z_]{{0,40}}){_BETWEEN}\d{{0,6}}\s{{0,3}}(?:&[gt]{{0,2}})?\Z)"
            rf"|(?i:(?<![^\W_])({names})\\?_?\d{{0,6}}\Z)"
        )

    def like(self, text: str) -> list[Like]:
        """What is a placeholder or could be taken for one, in order."""
        found = [Like(*one.span(), one[1], int(one[2] or 0)) for one in self._whole.finditer(text)]
        for number in _NUMBER.finditer(text):
            before = text[max(0, number.start() - _LONGEST) : number.start()].upper()
            label = next((one for one in self.labels if before.endswith(one)), None)
            rest = before.removesuffix(label or "")
            if label and not (rest and rest[-1].isalnum()):
                found.append(Like(number.start() - len(label), number.end()))
        covered, apart = 0, list[Like]()
        for one in sorted(found, key=lambda one: (one.start, -one.end)):
            if one.start >= covered:
                apart.append(one)
                covered = one.end
        return apart

    def open_from(self, text: str) -> tuple[int, bool] | None:
        """Where at the end of a text one may be half written, and whether surely."""
        before = max(0, len(text) - _LONGEST)
        for found in self._open.finditer(text, before):
            opens, label = found[1], (found[2] or "").strip("_").upper()
            if found[3] is not None:
                return found.start(), found[0][-1] == "_" or found[0][-1].isdigit()
            begins = any(one.startswith(label) for one in self.labels)
            if begins and (label or opens != "["):
                return found.start(), len(label) > 2
        return None


class Placeholders:
    """Those of one conversation, numbered as the words appear. Not shared between threads."""

    def __init__(self, forms: Forms) -> None:
        self._forms = forms
        self.names: dict[str, str] = {}
        self._words: dict[tuple[str, int], str] = {}
        self._counts: dict[str, int] = {}
        # What each word reads as: its normal form, and its letters alone.
        self._read: dict[str, tuple[str, str]] = {}

    def copy(self) -> "Placeholders":
        """The same so far, to go on with."""
        made = Placeholders(self._forms)
        made.names, made._words = dict(self.names), dict(self._words)
        made._counts = dict(self._counts)
        # What a word reads as is no matter of the conversation.
        made._read = self._read
        return made

    def places(self, text: str, found: Iterable[Span]) -> list[Span]:
        """What of `text` is replaced: what was `found`, known words, and literal placeholders.

        In order, none overlapping another.
        """
        spans = [_trimmed(text, one) for one in found]
        labels = {text[one.start : one.end]: one.label for one in spans}
        read = Normal(text)
        for word in dict.fromkeys([*self.names, *labels]):
            plain, _ = self.reading(word)
            label = labels.get(word) or self._label(word)
            if len(word) >= _SHORTEST:
                spans += [Span(at, at + len(word), label) for at in _occurrences(text, word)]
            if len(plain) >= _SHORTEST and (plain != word or not read.same):
                again = [Span(at, at + len(plain), label) for at in _occurrences(read.text, plain)]
                spans += map(read.span, again)
        spans += [Span(one.start, one.end, LITERAL) for one in self._forms.like(text)]
        return _joined(one for one in spans if one.start < one.end)

    def replaced(self, text: str, places: Sequence[Span]) -> str:
        """The text with placeholders in these places."""
        parts, at = list[str](), 0
        for place in places:
            parts += [
                text[at : place.start],
                self._name(text[place.start : place.end], place.label),
            ]
            at = place.end
        return "".join([*parts, text[at:]])

    def restored(self, reply: str, begun: str = "", *, ended: bool) -> Restored:
        """A reply with the words put back, up to what is no placeholder, or none yet.

        `begun` is the answer before it. In a call of a tool a placeholder stays what it is, unless
        the call has its word already: nobody but the edge says what a tool is told.
        """
        half = self._forms.open_from(reply)
        text = reply if half is None or (ended and not half[1]) else reply[: half[0]]
        parts, whole, at, length = list[str](), list[tuple[int, int]](), 0, 0
        for one in self._forms.like(text):
            word = self._words.get(((one.label or "").upper(), one.number))
            before = text[at : one.start]
            if word is None:
                return Restored("".join([*parts, before]), tuple(whole), "unknown")
            call = _call(begun + "".join([*parts, before]))
            if (
                call is not None
                and one.label != LITERAL
                and self.reading(word)[0] not in Normal(call).text
            ):
                word = text[one.start : one.end]
            parts += [before, word]
            length += len(before)
            whole.append((length, length + len(word)))
            length, at = length + len(word), one.end
        left = None if len(text) == len(reply) else "unknown" if ended else "open"
        return Restored("".join([*parts, text[at:]]), tuple(whole), left)

    def reading(self, word: str) -> tuple[str, str]:
        """A word's normal form, and as `normal.letters`; what was read once is known."""
        if word not in self._read:
            self._read[word] = Normal(word).text, letters(word)
        return self._read[word]

    def _name(self, word: str, label: str) -> str:
        name = self.names.get(word)
        if name is None:
            number = self._counts[label] = self._counts.get(label, 0) + 1
            self._words[label, number] = word
            name = self.names[word] = f"<{label}_{number}>"
        return name

    def _label(self, word: str) -> str:
        return self.names[word][1:].rpartition("_")[0]


def _call(text: str) -> str | None:
    """The call of a tool that is open at an answer's end; None where there is none."""
    if _BARE_CALL.match(text):
        return text
    begins = [one.end() for one in _CALL.finditer(text)]
    call = text[begins[-1] :] if begins else ""
    return None if not begins or _CALL_ENDS in call else call


def _occurrences(text: str, word: str) -> list[int]:
    found, at = list[int](), text.find(word)
    while at >= 0:
        end = at + len(word)
        inside = (at and word[0].isalnum() and text[at - 1].isalnum()) or (
            end < len(text) and word[-1].isalnum() and text[end].isalnum()
        )
        if not inside or len(word) >= _ANYWHERE:
            found.append(at)
        at = text.find(word, end)
    return found


def _trimmed(text: str, span: Span) -> Span:
    """Without blanks at its ends: those of an answer's end are held back."""
    word = text[span.start : span.end]
    start = span.start + len(word) - len(word.lstrip())
    return Span(start, start + len(word.strip()), span.label)


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Where some overlap they are one, with the label of the first that is no mere likeness."""
    made: list[Span] = []
    for one in sorted(spans, key=lambda one: (one.start, -one.end)):
        if made and one.start < made[-1].end:
            last = made[-1]
            label = one.label if last.label == LITERAL else last.label
            made[-1] = Span(last.start, max(last.end, one.end), label)
        else:
            made.append(one)
    return made
