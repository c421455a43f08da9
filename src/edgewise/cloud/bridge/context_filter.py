"""What a cloud gets to see of a conversation: all of it, or what a bridge's view leaves.

Where the cloud is sent what the edge reads there is nothing to choose. A bridge writes the
conversation anew for its cloud, so it may show less, or other words for some.
"""

import re
from collections.abc import Callable, Sequence
from copy import copy
from typing import Literal, NamedTuple

from edgewise.edge.base import Tokenizer
from edgewise.errors import Blocked, UsageError
from edgewise.prompts import Message

_GIVEN = re.compile(r"(\d{1,9}) ?(messages|tokens)?")


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


ContextFilterMaker = Callable[[Tokenizer], ContextFilter]
"""A view for a cloud with this tokenizer."""


class Amount(NamedTuple):
    """So many messages, or tokens."""

    number: int
    unit: Literal["messages", "tokens"]

    def __str__(self) -> str:
        return f"{self.number} {self.unit}"


def amount_of(given: str) -> Amount:
    """`6` or `6messages`, `2000tokens`; a blank may be between. Raises `UsageError`."""
    found = _GIVEN.fullmatch(given.strip())
    if found is None or not int(found[1]):
        raise UsageError(
            f"cloud-context {given!r} is no amount",
            hint="give a number of messages such as 6, or of tokens such as 2000tokens",
        )
    return Amount(int(found[1]), "tokens" if found[2] == "tokens" else "messages")


class Recent(ContextFilter):
    """A filter over another: whole messages, and the system's always.

    What is shown begins with a message of the user's, as chat templates want it. The answer so far
    is always shown.
    """

    def __init__(self, view: ContextFilter, most: Amount, tokenizer: Tokenizer) -> None:
        """Tokens are those of the contents, by the cloud's `tokenizer`."""
        self._view, self._most, self._tokenizer = view, most, tokenizer
        self.name = ", ".join(filter(None, (view.name, f"the last {most}")))

    def local_only(self, before: Context) -> bool:
        return self._view.local_only(before)

    def of(self, before: Context) -> FilteredContext:
        """Raises `Blocked` if not even the last message may be shown."""
        context = copy(self._view.of(before))
        context.shown = self._shortened(context.shown)
        return context

    def _shortened(self, before: Context) -> Context:
        # A prompt of ids is one message.
        messages = before.messages or (Message("user", before.text),)
        first = self._first(messages)
        while first < len(messages) and messages[first].role != "user":
            first += 1
        if first == len(messages):
            raise Blocked(
                f"The last message of the user's is not within the last {self._most}, "
                "which is all that may be sent."
            )
        if before.messages is None:
            return before
        shown = (one for at, one in enumerate(messages) if at >= first or one.role == "system")
        return Context(tuple(shown))

    def _first(self, messages: Sequence[Message]) -> int:
        """The place of the first message that may be shown."""
        sizes = [self._size(one) for one in messages]
        left = self._most.number
        left -= sum(size for size, one in zip(sizes, messages, strict=True) if one.role == "system")
        for at in reversed(range(len(messages))):
            if messages[at].role != "system":
                left -= sizes[at]
                if left < 0:
                    return at + 1
        return 0

    def _size(self, message: Message) -> int:
        if self._most.unit == "tokens":
            return len(self._tokenizer.encode(message.content))
        return int(message.role != "system")
