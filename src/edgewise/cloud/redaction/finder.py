"""All detectors over a text, in a time that is bounded whatever the text or a detector does."""

import logging
import threading
import time
from collections.abc import Mapping

from edgewise.cloud.redaction.base import TAIL, Detector, Span
from edgewise.cloud.redaction.normal import Normal
from edgewise.cloud.redaction.rules import Redaction, detectors_of
from edgewise.errors import Blocked

SECONDS = 5.0
"""What may be spent on looking for private words, at an answer's begin and at each consult."""

MOST_FOUND = 10_000
"""Private words of a conversation; one with more is not sent."""

_log = logging.getLogger(__name__)


class Finder:
    """Shared by answers in several threads."""

    def __init__(self, rules: Redaction) -> None:
        """Raises `UsageError` for a class that cannot be looked for here."""
        self._treatments = rules.active
        self._detectors: Mapping[str, Detector] = detectors_of(rules)
        self.labels = [label for one in self._detectors.values() for label in one.labels]
        self._late: threading.Thread | None = None
        self._told: set[str] = set()

    def find(self, text: str, end: float) -> list[Span]:
        """Of all classes, in the text as it is written and as it reads.

        `end` is by the monotonic clock.

        Raises `Blocked` where a class that makes a conversation local is there, and where a
        detector fails, finds what cannot be, or is late.
        """
        if not text:
            return []
        if self._late is not None and self._late.is_alive():
            raise Blocked("A detector of private words still looks for those of another text.")
        work = _Work(self._detectors, text)
        work.thread.start()
        work.thread.join(max(0.0, end - time.monotonic()))
        if work.thread.is_alive():
            self._late = work.thread
            raise self._failed(work.now, f"was not done in {SECONDS:g} s")
        if work.error is not None:
            raise self._failed(work.now, f"failed ({type(work.error).__name__})")
        found = self._checked(work.found, len(text))
        if work.normal is not None and not work.normal.same:
            found += map(work.normal.span, self._checked(work.read, len(work.normal.text)))
        return found

    def open_from(self, tail: str) -> int:
        """Where in an answer's end a private word may be half written; its length for nowhere."""
        read = Normal(tail[-TAIL:])
        place = self._open_from(tail)
        if not read.same and (at := self._open_from(read.text)) < len(read.text):
            place = min(place, max(0, len(tail) - TAIL) + read.written(at, at + 1)[0])
        return place

    def _open_from(self, tail: str) -> int:
        places = [len(tail)]
        for name, detector in self._detectors.items():
            look = getattr(detector, "open_from", None)
            try:
                at = None if look is None else look(tail[-TAIL:])
            except Exception as error:
                raise self._failed(name, f"failed ({type(error).__name__})") from error
            if isinstance(at, int) and at >= 0:
                places.append(max(0, len(tail) - TAIL) + at)
        return min(places)

    def _checked(self, found: Mapping[str, list[Span]], length: int) -> list[Span]:
        for name, spans in found.items():
            labels = self._detectors[name].labels
            if not all(_is_place(one, length, labels) for one in spans):
                raise self._failed(name, "found what is not in the text")
            if spans and self._treatments[name] == "local":
                raise Local(f"It holds a private word of the class {name}, which stays here.")
        return [one for spans in found.values() for one in spans]

    def _failed(self, name: str, what: str) -> Blocked:
        """Said in the log once for each detector and failure."""
        message = f"The detector {name!r} of private words {what}, so nothing is sent."
        if message not in self._told:
            self._told.add(message)
            _log.warning(message)
        return Blocked(message)


class Local(Blocked):
    """A private word is there of a class that makes the conversation local."""


class _Work:
    """All detectors over one text, in a thread that ends with the process."""

    def __init__(self, detectors: Mapping[str, Detector], text: str) -> None:
        self._detectors, self._text = detectors, text
        self.now = ""
        self.normal: Normal | None = None
        self.found: dict[str, list[Span]] = {}
        # And in the text as it reads.
        self.read: dict[str, list[Span]] = {}
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._look, name="private words", daemon=True)

    def _look(self) -> None:
        try:
            self.normal = Normal(self._text)
            for name, detector in self._detectors.items():
                self.now = name
                self.found[name] = list(detector.find(self._text))
                if not self.normal.same:
                    self.read[name] = list(detector.find(self.normal.text))
        except Exception as error:
            # Raised in this thread it would reach nobody.
            self.error = error


def _is_place(span: object, length: int, labels: tuple[str, ...]) -> bool:
    return (
        isinstance(span, Span)
        and all(type(at) is int for at in span[:2])
        and 0 <= span.start < span.end <= length
        and span.label in labels
    )
