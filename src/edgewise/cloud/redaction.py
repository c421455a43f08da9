"""Hiding private words from a cloud model: what a context filter must do, and the setting `redact`.

A context filter decides which text of a conversation a cloud model is shown, with placeholders in
place of private words. With a filter, every cloud model is asked as one of another vocabulary is:
it gets the filtered text or, if it takes token ids, this text encoded anew. Without one, a cloud
model of the edge model's vocabulary gets the edge model's own ids. The filter that `redact` sets
up, and its detectors, are an optional part (`options/redact`).
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
"""What happens to a private word: "mask" shows the cloud a placeholder; "local" sends neither the
word nor anything after it; "allow" shows the word."""

# Each text that may leave is searched for all of them.
MOST = 10_000
LONGEST = 200
"""Most private words that a user may list, and most characters of each."""


class Span(NamedTuple):
    """A private word in a text, `text[start:end]`. `label` is one of its detector's `labels`."""

    start: int
    end: int
    label: str


class Detector(Protocol):
    """Finds private words of one class, such as e-mail addresses. Must be thread-safe."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of its spans: capitals and underscores, such as EMAIL (shown as <EMAIL_1>)."""
        ...

    def find(self, text: str) -> Iterable[Span]:
        """Return the private words in `text`; they may overlap. If this raises, nothing is sent."""
        ...


class Context(NamedTuple):
    """The text before an answer: a conversation's `messages`, or a prompt given as token ids.

    For such a prompt `messages` is None, and `text` is what its ids stand for.
    """

    messages: tuple[Message, ...] | None
    text: str = ""


class Restored(NamedTuple):
    """A reply of the cloud model as `text`, with private words in place of their placeholders.

    `whole` are the places in `text` where placeholders stood, as (start, end) in characters: each
    is to be kept or dropped as a whole. `left` is None if `text` covers the whole reply. Otherwise
    it says what follows in the reply: a placeholder that is incomplete so far ("open"), or one that
    cannot be replaced ("unknown").
    """

    text: str
    whole: tuple[tuple[int, int], ...] = ()
    left: Literal["open", "unknown"] | None = None


def _as_it_is(reply: str, *, ended: bool, begun: str | None = None) -> Restored:
    return Restored(reply)


class FilteredAnswer(NamedTuple):
    """What the cloud model is shown of the answer so far: its `text`, with placeholders.

    When the answer grows, the next `text` should begin with this one, so that the cloud's KV cache
    is of use. `restored(reply, ended=...)` puts the private words back into `reply`, what the cloud
    wrote after `text`, and returns a `Restored`; `ended` says whether the reply is complete. If a
    reply replaces part of the answer, pass what is before that part as `begun` (see
    `FilteredContext.answer`). `words` are the private words, as (start, end, length of the
    placeholder) in characters of the answer.
    """

    text: str
    restored: Callable[..., Restored] = _as_it_is
    words: Sequence[tuple[int, int, int]] = ()

    def shown(self, end: int) -> int | None:
        """Convert `end`, an index of the answer, to one of `text`; None inside a private word."""
        if any(start < end < stop for start, stop, _ in self.words):
            return None
        return end + sum(size - (stop - start) for start, stop, size in self.words if stop <= end)


class FilteredContext(Protocol):
    """The text before an answer as the cloud may see it (`shown`). Thread-safe.

    The method `answer` filters the answer itself in the same way.
    """

    shown: Context

    def answer(self, written: str, begun: str | None = None) -> FilteredAnswer:
        """Return what the cloud may see of `written`, the answer so far.

        `begun` is the same text with the control tokens that mark tool calls: by them the filter
        knows whether a reply is inside a call. None: there are none. Raises `Blocked` if `written`
        may not be sent; the error's `open` is True if the only reason is that `written` may end
        inside a private word.
        """
        ...


class ContextFilter(Protocol):
    """Hides private words from a cloud model. Thread-safe.

    `name` says what it hides, in words for users, such as "redacted: email, iban=local".
    """

    name: str

    def local_only(self, before: Context) -> bool:
        """Whether only trusted clouds (setting `trust`) may be sent `before`, a prompt's text."""
        ...

    def of(self, before: Context) -> FilteredContext:
        """Filter `before`, a prompt's text. Raises `Blocked` if it may not be sent."""
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
"""The classes that `redact` = "on" stands for: words that are recognized by their form."""

WORDS = "words"
"""The class of private words that the user lists in a file."""


class Redaction(NamedTuple):
    """The setting `redact`: which private words to hide, and how.

    `treatments` maps classes of words, such as "email", to "mask" (send a placeholder) or "local"
    (send neither the word nor what follows). `words` are those that the user listed in files.
    """

    treatments: Mapping[str, Treatment]
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(
            name if how == "mask" else f"{name}={how}" for name, how in self.treatments.items()
        )


def redaction_of(redact: str | None) -> Redaction:
    """Parse the setting `redact`, such as "on,iban=local,@FILE"; None or "off" hides nothing.

    Each part is a file that lists private words ("@FILE"), a class such as "iban", or "on" for all
    classes in `EXACT`. A class or "on" may have a treatment: "=mask" (the default), "=local" or
    "=allow". Raises `UsageError` if the setting or a word list is invalid.
    """
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
    """Parse one part of the setting: "on" or a class, with "=" and a treatment or without."""
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
    """Return the private words in these files (one a line) without repeats; () for no files.

    Raises `UsageError` unless each file is UTF-8 and has a word, each word has 2 to 200 characters,
    and there are at most 10,000.
    """
    words = dict[str, None]()
    for name in files:
        content = file_bytes(from_home(name), f"The word list {name!r}", most=8 * MOST * LONGEST)
        try:
            lines = unmarked(content).decode().splitlines()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"The word list {name!r} cannot be read ({error})", hint="give a file in UTF-8"
            ) from error
        listed = dict.fromkeys(" ".join(one.split()) for one in lines if one.strip())
        words |= listed
        fit = all(2 <= len(word) <= LONGEST for word in listed)
        if not (fit and listed and len(words) <= MOST):
            raise UsageError(
                f"{name!r} is not a valid word list",
                hint=f"give 1 to {MOST} words of 2 to {LONGEST} characters, one per line",
            )
    return tuple(words)


def filter_of(redact: str | None) -> ContextFilter | None:
    """Return the filter for the setting `redact`; None if it hides nothing.

    Raises `UsageError` if the setting or a word list is invalid, or a detector cannot be loaded.
    """
    rules = redaction_of(redact)
    return FILTERS.load("redact")(rules) if rules.treatments else None


# Characters without a shape of their own: inside a private word they would hide it.
UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)

_NO_LETTER = re.compile(r"[\W_]+")


def letters(text: str) -> str:
    """Return a text's letters and digits as one string, in lower case and without accents.

    For any two texts, `letters(a + b)` equals `letters(a) + letters(b)`.
    """
    read = unicodedata.normalize("NFKD", UNSEEN.sub("", text)).casefold()
    return _NO_LETTER.sub("", read)
