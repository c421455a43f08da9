"""What a cloud gets to see of a conversation: all of it, or what a bridge's view leaves.

Where the cloud is sent what the edge reads there is nothing to choose. A bridge writes the
conversation anew for its cloud, so it may show less, or other words for some.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from edgewise.edge.base import Tokenizer
from edgewise.prompts import Message


class Preceding(NamedTuple):
    """What an answer follows, as a cloud is told: messages, else a `text` that was given as ids."""

    messages: tuple[Message, ...] | None
    text: str = ""


class Meant(NamedTuple):
    """What a cloud's words mean here, as far as that can be told.

    `whole` are places in `text`, from and to, that are one word each. Behind the text something
    is `left` where it ends early: words that may still become something else ("open"), or some
    that mean nothing here ("unknown").
    """

    text: str
    whole: tuple[tuple[int, int], ...] = ()
    left: Literal["open", "unknown"] | None = None


class Told(Protocol):
    """An answer so far as a cloud is told it, and what its words behind it mean."""

    @property
    def text(self) -> str:
        """What is shown. Of a longer answer it begins alike, or the cloud's cache misses."""
        ...

    def meant(self, reply: str, *, ended: bool) -> Meant:
        """Of the cloud's words so far; `ended` where no more will come."""
        ...


class Sight(Protocol):
    """One answer's view. What it shows of the same is always the same: caches go by it."""

    @property
    def shown(self) -> Preceding:
        """What stands before the answer."""
        ...

    def answer(self, written: str, begun: str | None = None) -> Told:
        """What is shown of an answer so far. Raises `Withheld` where nothing may be.

        `begun` is the answer with the signs of calls that are control tokens, where it differs.
        """
        ...


class View(Protocol):
    """Makes a `Sight` for each answer; any thread may ask."""

    @property
    def name(self) -> str:
        """Tells what it shows from what other views do; empty where that is everything."""
        ...

    def stays(self, before: Preceding) -> bool:
        """Whether what stands before an answer makes the conversation local."""
        ...

    def of(self, before: Preceding) -> Sight:
        """Of what stands before an answer. Raises `Withheld` where nothing may be shown."""
        ...


Viewing = Callable[[Tokenizer], View]
"""A view for a cloud with this tokenizer."""


class Unchanged(NamedTuple):
    """Implements `Told`: as it was written."""

    text: str

    def meant(self, reply: str, *, ended: bool) -> Meant:
        return Meant(reply)


class Plain:
    """Implements `View` and `Sight`: everything, as it is."""

    name = ""

    def __init__(self, before: Preceding | None = None) -> None:
        self._preceding = before or Preceding(None)

    @property
    def shown(self) -> Preceding:
        return self._preceding

    def stays(self, before: Preceding) -> bool:
        return False

    def of(self, before: Preceding) -> "Plain":
        return Plain(before)

    def answer(self, written: str, begun: str | None = None) -> Unchanged:
        return Unchanged(written)
