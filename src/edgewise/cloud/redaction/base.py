"""The contract of a detector: where private words are in a text."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from edgewise.registry import Registry


class Span(NamedTuple):
    """Characters from `start` to before `end` of a text; `label` is one of the detector's."""

    start: int
    end: int
    label: str


class Detector(Protocol):
    """Finds private words of one class, named by `--redact`. Several threads may ask at a time."""

    @property
    def labels(self) -> tuple[str, ...]:
        """What its placeholders are called: capitals, with underscores between, such as EMAIL."""
        ...

    def find(self, text: str) -> Iterable[Span]:
        """In any order; they may overlap. What it raises, or is late with, stops the consult."""
        ...


class Forming(Protocol):
    """What a detector may have as well."""

    def open_from(self, tail: str) -> int | None:
        """Where in the end of a text, at most `TAIL` characters, one may be half written."""
        ...


TAIL = 128
"""Characters at the end of an answer in which half a private word is looked for."""

DETECTORS: Registry[type[Detector]] = Registry(
    "class to redact",
    "edgewise.detectors",
    {
        "email": "edgewise.cloud.redaction.detectors:Email",
        "phone": "edgewise.cloud.redaction.detectors:Phone",
        "iban": "edgewise.cloud.redaction.detectors:Iban",
        "card": "edgewise.cloud.redaction.detectors:Card",
        "ip": "edgewise.cloud.redaction.detectors:Ip",
        "secret": "edgewise.cloud.redaction.detectors:Secret",
    },
    wanted=("labels", "find"),
)

EXACT = ("email", "phone", "iban", "card", "ip", "secret")
"""The classes of this package."""

WORDS = "words"
"""The class of the user's own words."""
