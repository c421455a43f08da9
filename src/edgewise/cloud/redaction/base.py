"""The contract of a detector of private words, and the setting `redact`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, cast, get_args

from edgewise.addresses import from_home
from edgewise.errors import UsageError
from edgewise.registry import Registry
from edgewise.settings import file_bytes, unmarked

Treatment = Literal["mask", "local", "allow"]
"""Shown as a placeholder; or never sent, nor anything after it; or shown as it is."""

MOST = 10_000
LONGEST = 200
"""Most words that a user may list, and most characters of each."""


class Span(NamedTuple):
    """Characters from `start` to before `end` of a text; `label` is one of the detector's."""

    start: int
    end: int
    label: str


class Detector(Protocol):
    """Finds private words of one class, named by `--redact`. Several threads may ask at a time."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of its placeholders: capitals joined by underscores, such as EMAIL."""
        ...

    def find(self, text: str) -> Iterable[Span]:
        """Returns spans in any order; they may overlap. An error or a timeout stops the consult."""
        ...


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


class Redaction(NamedTuple):
    """The treatment of each class of private words, and the user's own words."""

    treatments: Mapping[str, Treatment]
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(
            name if how == "mask" else f"{name}={how}" for name, how in self.treatments.items()
        )


def redaction_of(redact: str | None) -> Redaction:
    """The rules of a setting. Raises `UsageError`, also if its parts contradict each other."""
    if redact is None or redact.strip() == "off":
        return Redaction({})
    items = [one.strip() for one in redact.split(",")]
    own = words_of([one[1:] for one in items if one.startswith("@")])
    treatments: dict[str, Treatment] = {WORDS: "mask"} if own else {}
    for one in items:
        if not one.startswith("@"):
            treatments |= _item(one)
    treatments = {name: how for name, how in sorted(treatments.items()) if how != "allow"}
    if bool(own) != (WORDS in treatments):
        raise UsageError(
            f"redact: the class {WORDS} and @FILE require each other",
            hint=f"give both, and not {WORDS}=allow",
        )
    return Redaction(treatments, own)


def _item(one: str) -> dict[str, Treatment]:
    """`on`, a class, or a class and how it is treated."""
    name, given, how = one.partition("=")
    if given and how not in get_args(Treatment):
        raise UsageError(
            f"redact: {name} cannot be {how!r}", hint="give mask, local or allow, as in email=mask"
        )
    treatment = cast(Treatment, how) if given else "mask"
    if name == "on":
        return dict.fromkeys(EXACT, treatment)
    known = [*DETECTORS.names(), WORDS]
    if name not in known:
        raise UsageError(
            f"redact: there is no class {name!r}",
            hint=f"give on, off, or some of {', '.join(known)}, separated by commas",
        )
    return {name: treatment}


def words_of(files: Sequence[str]) -> tuple[str, ...]:
    """The words of these files, one a line. Raises `UsageError`."""
    lines = list[str]()
    for name in files:
        content = file_bytes(from_home(name), f"The word list {name!r}", most=8 * MOST * LONGEST)
        try:
            lines += unmarked(content).decode().splitlines()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"The word list {name!r} cannot be read ({error})", hint="give a file in UTF-8"
            ) from error
    words = tuple(dict.fromkeys(" ".join(one.split()) for one in lines if one.strip()))
    fit = all(2 <= len(word) <= LONGEST for word in words)
    if files and not (fit and 1 <= len(words) <= MOST):
        raise UsageError(
            f"{files[0]!r} is not a valid word list",
            hint=f"give 1 to {MOST} words of 2 to {LONGEST} characters, one per line",
        )
    return words
