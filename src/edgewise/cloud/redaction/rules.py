"""What is to be redacted, and how: the setting `redact`."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, cast, get_args

from edgewise.addresses import from_home
from edgewise.cloud.bridge.word_boundary import is_unspaced
from edgewise.cloud.redaction.base import DETECTORS, EXACT, WORDS, Detector, Span
from edgewise.cloud.redaction.normal import Normal
from edgewise.errors import UsageError

Treatment = Literal["mask", "local", "allow"]
"""Shown as a placeholder, or never sent and nothing behind it, or shown as it is."""

_LABEL = re.compile(r"[A-Z][A-Z_]{0,30}[A-Z]|[A-Z]")

MOST = 10_000
LONGEST = 200
MAX_FILE = 1 << 20
"""Of words, in characters each, and of their file in bytes."""

_RUN = re.compile(r"\w+")


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


def redaction_of(redact: str | None) -> Redaction:
    """The rules of a setting. Raises `UsageError`, also if its parts contradict each other."""
    if redact is None or redact.strip() == "off":
        return Redaction({})
    asked = [one.strip() for one in redact.split(",")]
    own = words_of([one[1:] for one in asked if one.startswith("@")])
    treatments: dict[str, Treatment] = {WORDS: "mask"} if own else {}
    for one in asked:
        if not one.startswith("@"):
            treatments |= _item(one)
    if own and treatments[WORDS] == "allow":
        raise UsageError("redact names words and lets them leave", hint="take one of them out")
    if treatments.get(WORDS, "allow") != "allow" and not own:
        raise UsageError(
            f"redact names the class {WORDS}, and there are none", hint="give @FILE, one a line"
        )
    return Redaction(treatments, own)


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


def words_of(files: Sequence[str]) -> tuple[str, ...]:
    """The words of these files, one a line. Raises `UsageError`."""
    lines = [line for name in files for line in _lines(name)]
    words = tuple(dict.fromkeys(" ".join(one.split()) for one in lines if one.strip()))
    if files and not words:
        raise UsageError(f"The file {files[0]!r} of redact has no word", hint="write one a line")
    for word in words:
        if not 2 <= len(word) <= LONGEST:
            raise UsageError(
                f"redact names the word {word[:LONGEST]!r}, and a word has 2 to {LONGEST} "
                "characters"
            )
    if len(words) > MOST:
        raise UsageError(f"redact names more than {MOST} words", hint="shorten the list")
    return words


def _lines(name: str) -> list[str]:
    path = from_home(name)
    try:
        if not path.is_file():
            raise UsageError(f"redact names {name!r}, and there is no such file")
        if path.stat().st_size > MAX_FILE:
            raise UsageError(f"The words in {name!r} have more than {MAX_FILE} bytes")
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"The words in {name!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"The words in {name!r} are no valid UTF-8.") from error


class Words:
    """Finds them whole, however they are capitalised and whatever blanks are between."""

    labels = ("WORD",)

    def __init__(self, words: Sequence[str]) -> None:
        # Looked up by their first run of letters, but in scripts that have no spaces.
        self._by_run: dict[str, list[tuple[int, re.Pattern[str]]]] = defaultdict(list)
        self._anywhere: list[re.Pattern[str]] = []
        for word in (Normal(one).text for one in words):
            run = _RUN.search(word)
            if run is None or any(map(is_unspaced, word)):
                self._anywhere.append(_pattern(word))
            else:
                self._by_run[run[0].lower()].append((run.start(), _pattern(word)))

    def find(self, text: str) -> Iterator[Span]:
        for run in _RUN.finditer(text) if self._by_run else ():
            for before, pattern in self._by_run.get(run[0].lower(), ()):
                found = pattern.match(text, max(0, run.start() - before))
                if found is not None:
                    yield Span(found.start(), found.end(), "WORD")
        for pattern in self._anywhere:
            for found in pattern.finditer(text):
                yield Span(found.start(), found.end(), "WORD")


def _pattern(word: str) -> re.Pattern[str]:
    spelled = r"\s{1,8}".join(map(re.escape, word.split()))
    begins = r"(?<!\w)" if _RUN.match(word) and not is_unspaced(word[0]) else ""
    ends = r"(?!\w)" if _RUN.match(word[-1]) and not is_unspaced(word[-1]) else ""
    return re.compile(f"{begins}{spelled}{ends}", re.IGNORECASE)
