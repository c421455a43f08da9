"""The context filter of `--redact`: it shows the cloud placeholders instead of private words."""

import logging
import time
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache, partial

from msgspec.structs import replace

from edgewise.cloud.adapter.word_boundary import is_unspaced
from edgewise.cloud.redaction import (
    DETECTORS,
    WORDS,
    Context,
    Detector,
    FilteredAnswer,
    Redaction,
    Span,
    letters,
)
from edgewise.errors import Blocked
from edgewise.options.redact.detectors import Words
from edgewise.options.redact.normal import Normal
from edgewise.options.redact.placeholders import Forms, Placeholders

SECONDS = 5.0
"""Timeout in seconds of all detectors for one text; when it is exceeded, nothing is sent."""

TAIL = 128
"""How many characters at an answer's end are searched for the beginning of a private word."""

_KEPT = 8  # conversations whose private words are not looked for again
_log = logging.getLogger(__name__)


class Local(Blocked):
    """Raised for a private word of a class that setting `redact` marks local (iban=local)."""


def detectors_of(rules: Redaction) -> dict[str, Detector]:
    """Return a detector for each class in `rules`, by class. `UsageError` if one cannot be made."""
    return {
        name: Words(rules.words) if name == WORDS else DETECTORS.load(name)()
        for name in rules.treatments
    }


class Redacted:
    """A `ContextFilter` that replaces private words by placeholders, as setting `redact` says."""

    def __init__(self, rules: Redaction) -> None:
        self._treatments = rules.treatments
        self._detectors = detectors_of(rules)
        labels = [label for one in self._detectors.values() for label in one.labels]
        self.forms = Forms(labels)
        self._logged: set[str] = set()
        self._seen = lru_cache(_KEPT)(self._look)
        self.name = f"redacted: {rules}"

    def local_only(self, before: Context) -> bool:
        """Return whether the conversation in `before` may be sent to trusted clouds only.

        True if it has a private word of a class that the setting `redact` marks local (iban=local).
        Setting `trust` lists trusted hosts. False if a detector failed: `of` then raises `Blocked`.
        """
        try:
            return isinstance(self._seen(before), Local)
        except Blocked:
            # `of` raises it again, and the token says why: `blocked`.
            return False

    def of(self, before: Context) -> "RedactedContext":
        """Return the conversation in `before`, redacted. Raises `Blocked` if it may not be sent."""
        seen = self._seen(before)
        if isinstance(seen, Local):
            raise seen
        return seen

    def find(self, text: str) -> list[Span]:
        """Return where private words stand in `text`, even if written in unusual characters.

        The spans come in no order and may overlap. Raises `Local` for a word of a class marked
        local, and `Blocked` if a detector fails, takes too long, or returns an invalid span.
        """
        if not text:
            return []
        read, found, end = Normal(text), list[Span](), time.monotonic() + SECONDS
        for name in self._detectors:
            found += self._found(name, text)
            if not read.same:
                found += map(read.span, self._found(name, read.text))
            if time.monotonic() > end:
                raise self._failed(name, f"was not done in {SECONDS:g} s")
        return found

    def _look(self, before: Context) -> "RedactedContext | Local":
        try:
            return RedactedContext(before, self)
        except Local as error:
            return error

    def _found(self, name: str, text: str) -> list[Span]:
        detector = self._detectors[name]
        try:
            found: list[object] = list(detector.find(text))
            spans = [one for one in found if isinstance(one, Span)]
            valid = len(spans) == len(found) and all(
                0 <= start < end <= len(text) and label in detector.labels
                for start, end, label in spans
            )
        except Exception as error:
            # Not its cause: what a detector says may hold private words.
            raise self._failed(name, f"failed ({type(error).__name__})") from None
        if not valid:
            raise self._failed(name, "found what is not in the text")
        if spans and self._treatments[name] == "local":
            raise Local(f"It holds a private word of the class {name}, which stays here.")
        return spans

    def _failed(self, name: str, what: str) -> Blocked:
        """Return the error for a failed detector; log it once for each detector and failure."""
        message = f"The detector {name!r} of private words {what}, so nothing is sent."
        if message not in self._logged:
            self._logged.add(message)
            _log.warning(message)
        return Blocked(message)


class RedactedContext:
    """Redacts a conversation (`shown`, with placeholders) and its answer; a `FilteredContext`.

    Equal conversations get equal placeholders, so the cloud can reuse its KV cache of them.
    """

    def __init__(self, before: Context, redaction: Redacted) -> None:
        self._filter, self._known = redaction, Placeholders(redaction.forms)
        messages = before.messages
        texts = [before.text] if messages is None else [one.content for one in messages]
        found = list(map(redaction.find, texts))
        # Twice: a later message may show that a word of an earlier one is private.
        list(map(self._redacted, texts, found))
        redacted = list(map(self._redacted, texts, found))
        if messages is None:
            self.shown = Context(None, *redacted)
        else:
            pairs = zip(messages, redacted, strict=True)
            self.shown = Context(tuple(replace(one, content=text) for one, text in pairs))

    def answer(self, written: str, begun: str | None = None) -> FilteredAnswer:
        """Return `written`, the answer so far, with placeholders for private words.

        The result's `restored` puts the words back into the cloud's reply. `begun` is the same
        answer with the text of control tokens that mark tool calls, which `written` lacks; None if
        it has none. Raises `Blocked` if `written` may not be sent. The error's `open` is True if
        the only reason is the end of `written`, which may be the beginning of a private word.
        """
        known = self._known.copy()
        places = known.places(written, self._filter.find(written))
        if _is_open(written, places, known):
            raise Blocked("The answer may end inside a private word.", open=True)
        text = known.replaced(written, places)
        words = [(at, end, len(known.names[written[at:end]])) for at, end, _ in places]
        return FilteredAnswer(text, partial(known.restored, begun=begun or written), words)

    def _redacted(self, text: str, found: Sequence[Span]) -> str:
        return self._known.replaced(text, self._known.places(text, found))


_letters = lru_cache(1 << 14)(letters)


def _is_open(text: str, places: Sequence[Span], known: Placeholders) -> bool:
    """Return whether the end of `text` may be half a known word, in any spacing and capitals."""
    words = sorted(filter(None, map(_letters, known.names)))
    if places and places[-1].end >= len(text.rstrip()):
        word = text[places[-1].start : places[-1].end]
        # It would have one placeholder now and another when it is whole.
        return word not in known.names and _begins(_letters(word), words)
    begins = (
        at
        for at in range(max(0, len(text) - TAIL), len(text))
        if (at == 0 or not text[at - 1].isalnum() or is_unspaced(text[at]))
        and not any(one.start < at < one.end for one in places)
    )
    return any(_begins(_letters(text[at:]), words) for at in begins)


def _begins(begun: str, words: Sequence[str]) -> bool:
    found = bisect_left(words, begun) if begun else len(words)
    return found < len(words) and words[found].startswith(begun)
