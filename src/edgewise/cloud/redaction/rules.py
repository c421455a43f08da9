"""What is to be redacted, and how: the settings `redact` and `redact-words`."""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast, get_args

from edgewise.cloud.redaction.base import DETECTORS, EXACT, WORDS, Detector
from edgewise.cloud.redaction.words import Words, words_of
from edgewise.errors import UsageError

Treatment = Literal["mask", "local", "allow"]
"""Shown as a placeholder, or never sent and nothing behind it, or shown as it is."""

_LABEL = re.compile(r"[A-Z][A-Z_]{0,30}[A-Z]|[A-Z]")


class Redaction(NamedTuple):
    """What each class is treated as, and the user's own words."""

    treatments: Mapping[str, Treatment]
    words: tuple[str, ...] = ()

    @property
    def active(self) -> dict[str, Treatment]:
        """Those that are not allowed."""
        return {name: how for name, how in sorted(self.treatments.items()) if how != "allow"}

    def __str__(self) -> str:
        return ", ".join(
            name if how == "mask" else f"{name}={how}" for name, how in self.active.items()
        )


def redaction_of(redact: str | None, words: str | None) -> Redaction:
    """By the settings. Raises `UsageError`, also where one would undo what the other asks for."""
    own = words_of(words) if words is not None else ()
    found: dict[str, Treatment] = {WORDS: "mask"} if own else {}
    asked = [one.strip() for one in (redact or "").split(",")] if redact is not None else []
    if own and ("off" in asked or f"{WORDS}=allow" in asked):
        raise UsageError(
            "redact-words names words that redact lets leave", hint="take one of them out"
        )
    if asked == ["off"]:
        return Redaction({})
    for one in asked:
        found |= _item(one)
    if found.get(WORDS, "allow") != "allow" and not own:
        raise UsageError(
            f"redact names the class {WORDS}, and there are none", hint="give redact-words"
        )
    return Redaction(found, own)


def detectors_of(rules: Redaction) -> dict[str, Detector]:
    """One for each class that is not allowed. Raises `UsageError` for one that cannot be had."""
    made = {name: Words(rules.words) if name == WORDS else _made(name) for name in rules.active}
    for name, detector in made.items():
        if not detector.labels or not all(map(_is_label, detector.labels)):
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


def _is_label(label: object) -> bool:
    return isinstance(label, str) and _LABEL.fullmatch(label) is not None


def _item(one: str) -> dict[str, Treatment]:
    """`on`, a class, or a class and how it is treated."""
    name, given, how = one.partition("=")
    if given and how not in get_args(Treatment):
        raise UsageError(
            f"redact treats {name!r} as {how!r}", hint="give mask, local or allow, as in email=mask"
        )
    treatment = cast(Treatment, how) if given else "mask"
    if name == "on":
        return dict.fromkeys(EXACT, treatment)
    known = [*DETECTORS.names(), WORDS]
    if name not in known:
        raise UsageError(
            f"redact names no class {name!r}",
            hint=f"give on, off, or some of {', '.join(known)}, separated by commas",
        )
    return {name: treatment}
