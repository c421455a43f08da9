"""What a cloud gets to see: the contract of a context filter, and the setting `redact`.

A cloud of the edge's vocabulary is sent the ids that the edge reads. The cross-tokenizer adapter
writes the conversation anew, so it may show other words for some. The filter and its detectors are
an option (`options/redact`).
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, cast, get_args

from edgewise.addresses import from_home
from edgewise.errors import UsageError
from edgewise.prompts import Message
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


class Context(NamedTuple):
    """A cloud's context before an answer: messages, else the `text` of a prompt of ids."""

    messages: tuple[Message, ...] | None
    text: str = ""


class Restored(NamedTuple):
    """The cloud's text with placeholders replaced by the original words, as far as that is known.

    `whole` are places in `text`, from and to, that are one word each. `left` says what follows if
    it ends early: words that may still become something else ("open"), or words that mean nothing
    here ("unknown").
    """

    text: str
    whole: tuple[tuple[int, int], ...] = ()
    left: Literal["open", "unknown"] | None = None


def _as_it_is(reply: str, *, ended: bool) -> Restored:
    return Restored(reply)


class FilteredAnswer(NamedTuple):
    """The redacted answer so far; `restored` translates the cloud's next words back.

    Of a longer answer the `text` begins alike, or the cloud's cache misses. `restored` is asked
    with the cloud's words so far, and whether they have `ended`.
    """

    text: str
    restored: Callable[..., Restored] = _as_it_is


class FilteredContext(Protocol):
    """What a cloud sees before one answer: `shown`. Any thread may ask."""

    shown: Context

    def answer(self, written: str, begun: str | None = None) -> FilteredAnswer:
        """The answer so far as the cloud sees it.

        `begun` is the answer with the signs of calls that are control tokens, where it differs.
        Raises `Blocked`, with `open` if the end may become a private word.
        """
        ...


class ContextFilter(Protocol):
    """Says what a cloud sees of each answer. `name` says what it hides. Any thread may ask."""

    name: str

    def local_only(self, before: Context) -> bool:
        """Whether the text before an answer keeps the conversation on the device."""
        ...

    def of(self, before: Context) -> FilteredContext:
        """The context that is shown. Raises `Blocked` if nothing may be."""
        ...


DETECTORS: Registry[type[Detector]] = Registry(
    "class to redact",
    "edgewise.detectors",
    {},
    wanted=("labels", "find"),
)

FILTERS: Registry[Callable[["Redaction"], ContextFilter]] = Registry(
    "context filter", "edgewise.filters", {}
)

EXACT = ("email", "phone", "iban", "card", "ip", "secret")
"""The classes of words with a form, those that `on` stands for."""

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


def filter_of(redact: str | None) -> ContextFilter | None:
    """The context filter of a setting; None where nothing is hidden. Raises `UsageError`."""
    rules = redaction_of(redact)
    return FILTERS.load("redact")(rules) if rules.treatments else None


# They change what stands before them, if anything, and are no signs of a text's.
UNSEEN = re.compile("[\u034f\u115f\u1160\u3164\ufe00-\ufe0f\uffa0]")

_NO_LETTER = re.compile(r"[\W_]+")


def letters(text: str) -> str:
    """Letters and digits alone, without accents and in small letters.

    Of two texts in a row they are those of the one and then the other's.
    """
    read = unicodedata.normalize("NFKD", UNSEEN.sub("", text)).casefold()
    return _NO_LETTER.sub("", read)
