"""What a cloud gets to see of a conversation: all of it, or what a context filter leaves.

A cloud of the edge's vocabulary is sent the ids that the edge reads. The cross-tokenizer adapter
writes the conversation anew, so it may show other words for some.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from edgewise.prompts import Message


class Context(NamedTuple):
    """What a cloud sees before an answer: messages, else the `text` of a prompt of ids."""

    messages: tuple[Message, ...] | None
    text: str = ""


class Restored(NamedTuple):
    """What a cloud's words mean here, as far as that is known yet.

    `whole` are places in `text`, from and to, that are one word each. Behind the text something
    is `left` where it ends early: words that may still become something else ("open"), or some
    that mean nothing here ("unknown").
    """

    text: str
    whole: tuple[tuple[int, int], ...] = ()
    left: Literal["open", "unknown"] | None = None


def _as_it_is(reply: str, *, ended: bool) -> Restored:
    return Restored(reply)


class FilteredAnswer(NamedTuple):
    """An answer so far as a cloud is shown it, and what its words behind it mean.

    Of a longer answer the `text` begins alike, or the cloud's cache misses. `restored` is asked
    with the cloud's words so far, and whether they have `ended`.
    """

    text: str
    restored: Callable[..., Restored] = _as_it_is


class FilteredContext:
    """What a cloud sees of one answer; this one shows all of it.

    What it shows of the same is always the same: caches go by it.
    """

    def __init__(self, shown: Context) -> None:
        """`shown` stands before the answer."""
        self.shown = shown

    def answer(self, written: str, begun: str | None = None) -> FilteredAnswer:
        """What is shown of an answer so far. Raises `Blocked` if nothing may be shown.

        `begun` is the answer with the signs of calls that are control tokens, where it differs.
        """
        return FilteredAnswer(written)


class ContextFilter:
    """Makes a `FilteredContext` for each answer; any thread may ask. This one shows everything.

    `name` says what it shows; empty where that is everything.
    """

    name: str = ""

    def local_only(self, before: Context) -> bool:
        """Whether the text before an answer keeps the conversation on the device."""
        return False

    def of(self, before: Context) -> FilteredContext:
        """The filtered text before an answer. Raises `Blocked` if nothing may be shown."""
        return FilteredContext(before)
