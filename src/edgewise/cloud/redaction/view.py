"""The view of a conversation in which private words are placeholders."""

import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from msgspec.structs import replace

from edgewise.cloud.bridge.context_filter import (
    Context,
    ContextFilter,
    FilteredAnswer,
    FilteredContext,
    Restored,
)
from edgewise.cloud.bridge.word_boundary import is_unspaced
from edgewise.cloud.redaction.base import TAIL, Span
from edgewise.cloud.redaction.finder import MOST_FOUND, SECONDS, Finder, Local
from edgewise.cloud.redaction.normal import letters
from edgewise.cloud.redaction.placeholders import Forms, Placeholders
from edgewise.cloud.redaction.rules import Redaction
from edgewise.errors import Blocked

_KEPT = 8
"""Conversations whose private words are not looked for again."""


class Redacted(ContextFilter):
    """A filter that shows placeholders for private words."""

    def __init__(self, rules: Redaction) -> None:
        """Raises `UsageError` for a class that cannot be looked for here."""
        self._finder = Finder(rules)
        self._forms = Forms(self._finder.labels)
        self._contexts: OrderedDict[Context, RedactedContext | Local] = OrderedDict()
        self._lock = threading.Lock()
        self.name = f"redacted: {rules}"

    def local_only(self, before: Context) -> bool:
        try:
            return isinstance(self._seen(before), Local)
        except Blocked:
            # `of` raises it again, and the token says why: `blocked`.
            return False

    def of(self, before: Context) -> "RedactedContext":
        seen = self._seen(before)
        if isinstance(seen, Local):
            raise seen
        return seen

    def _seen(self, before: Context) -> "RedactedContext | Local":
        with self._lock:
            seen = self._contexts.pop(before, None)
        if seen is None:
            try:
                seen = RedactedContext(before, self._finder, self._forms)
            except Local as error:
                seen = error
        with self._lock:
            self._contexts[before] = seen
            while len(self._contexts) > _KEPT:
                self._contexts.popitem(last=False)
        return seen


class RedactedContext(FilteredContext):
    """Any thread may ask."""

    def __init__(self, before: Context, finder: Finder, forms: Forms) -> None:
        """Raises `Blocked`."""
        self._finder, self._known = finder, Placeholders(forms)
        end = time.monotonic() + SECONDS
        if before.messages is None:
            self.shown = Context(None, self._redacted(self._known, before.text, end))
        else:
            self.shown = Context(
                tuple(
                    replace(one, content=self._redacted(self._known, one.content, end))
                    for one in before.messages
                )
            )

    def answer(self, written: str, begun: str | None = None) -> "RedactedAnswer":
        """Raises `Blocked`, with `open` if the end may become a private word."""
        known = self._known.copy()
        places = self._places(known, written, time.monotonic() + SECONDS)
        self._require_closed(written, places, known)
        return RedactedAnswer(known.replaced(written, places), known, begun or written)

    def _redacted(self, known: Placeholders, text: str, end: float) -> str:
        return known.replaced(text, self._places(known, text, end))

    def _places(self, known: Placeholders, text: str, end: float) -> list[Span]:
        found = self._finder.find(text, end)
        if len(known.names) + len({text[one.start : one.end] for one in found}) > MOST_FOUND:
            raise Blocked(f"It holds more than {MOST_FOUND} private words, so nothing is sent.")
        places = known.places(text, found)
        if time.monotonic() > end:
            raise Blocked(f"Its private words were not found in {SECONDS:g} s.")
        return places

    def _require_closed(self, text: str, places: Sequence[Span], known: Placeholders) -> None:
        """Raises `Blocked` if the end may be half a private word that no placeholder shows."""
        tail = max(0, len(text) - TAIL)
        if places and places[-1].end >= len(text.rstrip()):
            word = text[places[-1].start : places[-1].end]
            if word not in known.names and _begins(letters(word), _words(known)):
                # It would have one placeholder now and another when it is whole.
                raise Blocked("The answer's end may be half a private word.", open=True)
            return
        opens = tail + self._finder.open_from(text[tail:])
        if opens < len(text) or self._begins_known(text, tail, places, known):
            raise Blocked("The answer's end may be half a private word.", open=True)

    def _begins_known(
        self, text: str, tail: int, places: Sequence[Span], known: Placeholders
    ) -> bool:
        """Whether the end is how a known word begins, however it is divided and capitalised."""
        words = _words(known)
        starts = [at for at in range(tail, len(text)) if _starts(text, at)]
        starts = [at for at in starts if not any(one.start < at < one.end for one in places)]
        return any(_begins(letters(text[at:]), words) for at in starts)


class RedactedAnswer(FilteredAnswer):
    """With placeholders."""

    def __init__(self, text: str, known: Placeholders, begun: str) -> None:
        """`begun` is the answer as it is here."""
        self.text, self._known, self._begun = text, known, begun

    def restored(self, reply: str, *, ended: bool) -> Restored:
        return self._known.restored(reply, self._begun, ended=ended)


def _words(known: Placeholders) -> list[str]:
    """Those of a conversation, as `letters` has them, in order."""
    return sorted(filter(None, map(known.letters, known.names)))


def _begins(begun: str, words: Sequence[str]) -> bool:
    """Whether one of the `words`, in order, begins so."""
    found = bisect_left(words, begun) if begun else len(words)
    return found < len(words) and words[found].startswith(begun)


def _starts(text: str, at: int) -> bool:
    """Whether a word may begin there."""
    return at == 0 or not text[at - 1].isalnum() or is_unspaced(text[at])
