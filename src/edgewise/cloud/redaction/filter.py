"""The context filter that replaces private words by placeholders."""

import logging
import re
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from edgewise.cloud.bridge.context_filter import (
    Context,
    ContextFilter,
    FilteredAnswer,
    FilteredContext,
    Restored,
)
from edgewise.cloud.bridge.word_boundary import is_unspaced
from edgewise.cloud.redaction.base import DETECTORS, WORDS, Detector, Redaction, Span
from edgewise.cloud.redaction.detectors import Words, open_from
from edgewise.cloud.redaction.normal import Normal, letters
from edgewise.cloud.redaction.placeholders import Forms, Placeholders
from edgewise.errors import Blocked, UsageError

SECONDS = 5.0
"""What may be spent on looking for private words, at an answer's begin and at each consult."""

MOST_FOUND = 10_000
"""Private words of a conversation; one with more is not sent."""

TAIL = 128
"""Characters at the end of an answer in which half a private word is looked for."""

_KEPT = 8
"""Conversations whose private words are not looked for again."""

_LABEL = re.compile(r"[A-Z][A-Z_]{0,30}[A-Z]|[A-Z]")

_log = logging.getLogger(__name__)


class Local(Blocked):
    """A private word is there of a class that makes the conversation local."""


def detectors_of(rules: Redaction) -> dict[str, Detector]:
    """One for each class that is not allowed. Raises `UsageError` for one that cannot be had."""
    made = {name: Words(rules.words) if name == WORDS else _made(name) for name in rules.active}
    for name, detector in made.items():
        if not detector.labels or not all(_LABEL.fullmatch(str(one)) for one in detector.labels):
            raise UsageError(
                f"The class to redact {name!r} has labels that placeholders cannot have",
                hint="labels are capitals, with underscores between",
            )
    return made


def _made(name: str) -> Detector:
    kind = DETECTORS.load(name)
    try:
        return kind()
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"What finds the class to redact {name!r} cannot be made ({error!r})",
            hint="repair or remove the package that adds it",
        ) from error


class Finder:
    """All detectors over a text, in a bounded time. Shared by answers in several threads."""

    def __init__(self, rules: Redaction) -> None:
        """Raises `UsageError` for a class that cannot be looked for here."""
        self._treatments = rules.active
        self._detectors = detectors_of(rules)
        self.labels = [label for one in self._detectors.values() for label in one.labels]
        self._late: threading.Thread | None = None
        self._logged: set[str] = set()

    def find(self, text: str, end: float) -> list[Span]:
        """Of all classes, in the text as it is written and as it reads.

        `end` is by the monotonic clock. Raises `Blocked` where a class that makes a conversation
        local is there, and where a detector fails, finds what cannot be, or is late.
        """
        if not text:
            return []
        if self._late is not None and self._late.is_alive():
            raise Blocked("A detector of private words still looks for those of another text.")
        work = _Work()
        # It ends with the process.
        thread = threading.Thread(target=self._look, args=(text, work), daemon=True)
        thread.start()
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            self._late = thread
            raise self._failed(work.now, f"was not done in {SECONDS:g} s")
        if isinstance(work.error, Blocked):
            raise work.error
        if work.error is not None:
            raise self._failed(work.now, f"failed ({type(work.error).__name__})")
        return work.found

    def _look(self, text: str, work: "_Work") -> None:
        try:
            read = Normal(text)
            for name, detector in self._detectors.items():
                work.now = name
                work.found += self._checked(name, detector.find(text), len(text))
                if not read.same:
                    again = self._checked(name, detector.find(read.text), len(read.text))
                    work.found += map(read.span, again)
        except Exception as error:
            # Raised in this thread it would reach nobody.
            work.error = error

    def _checked(self, name: str, found: Iterable[Span], length: int) -> list[Span]:
        spans = list(found)
        labels = self._detectors[name].labels
        if not all(_is_place(one, length, labels) for one in spans):
            raise self._failed(name, "found what is not in the text")
        if spans and self._treatments[name] == "local":
            raise Local(f"It holds a private word of the class {name}, which stays here.")
        return spans

    def _failed(self, name: str, what: str) -> Blocked:
        """Logged once for each detector and failure."""
        message = f"The detector {name!r} of private words {what}, so nothing is sent."
        if message not in self._logged:
            self._logged.add(message)
            _log.warning(message)
        return Blocked(message)


class _Work:
    """What was found in a text, and which detector looks for it `now`."""

    def __init__(self) -> None:
        self.now = ""
        self.found: list[Span] = []
        self.error: Exception | None = None


def _is_place(span: object, length: int, labels: tuple[str, ...]) -> bool:
    return (
        isinstance(span, Span)
        and all(type(at) is int for at in span[:2])
        and 0 <= span.start < span.end <= length
        and span.label in labels
    )


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
        opens = tail + _open_from(text[tail:])
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
    return sorted(filter(None, (known.reading(word)[1] for word in known.names)))


def _begins(begun: str, words: Sequence[str]) -> bool:
    """Whether one of the `words`, in order, begins so."""
    found = bisect_left(words, begun) if begun else len(words)
    return found < len(words) and words[found].startswith(begun)


def _starts(text: str, at: int) -> bool:
    """Whether a word may begin there."""
    return at == 0 or not text[at - 1].isalnum() or is_unspaced(text[at])


def _open_from(tail: str) -> int:
    """Where in an answer's end a private word may be half written; its length for nowhere."""
    read, place = Normal(tail), open_from(tail)
    if not read.same and (at := open_from(read.text)) < len(read.text):
        place = min(place, read.written(at, at + 1)[0])
    return place
