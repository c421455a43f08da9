"""The view of a conversation in which only its last messages, or tokens, are shown."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from edgewise.cloud.view import Preceding, Sight, Told, View
from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError, Withheld
from edgewise.prompts import Message

_GIVEN = re.compile(r"(\d{1,9}) ?(messages|tokens)?")


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


class Recent:
    """Implements `View` over another: whole messages, and the system's always.

    What is shown begins with a message of the user's, as chat templates want it. The answer so far
    is always shown.
    """

    def __init__(self, view: View, most: Amount, tokenizer: Tokenizer) -> None:
        """Tokens are those of the contents, by the cloud's `tokenizer`."""
        self._view, self._most, self._tokenizer = view, most, tokenizer
        self.name = ", ".join(filter(None, (view.name, f"the last {most}")))

    def stays(self, before: Preceding) -> bool:
        return self._view.stays(before)

    def of(self, before: Preceding) -> "_RecentSight":
        """Raises `Withheld` where not even the last message may be shown."""
        sight = self._view.of(before)
        return _RecentSight(sight, self._shortened(sight.shown))

    def _shortened(self, before: Preceding) -> Preceding:
        if before.messages is None:
            few = self._most.unit == "messages" or self._count([before.text]) <= self._most.number
            self._require(few)
            return before
        messages = before.messages
        first = self._first(messages)
        while first < len(messages) and messages[first].role != "user":
            first += 1
        self._require(first < len(messages))
        return Preceding(
            tuple(one for at, one in enumerate(messages) if at >= first or one.role == "system")
        )

    def _first(self, messages: Sequence[Message]) -> int:
        """The place of the first message that may be shown."""
        system = [one.content for one in messages if one.role == "system"]
        left = self._most.number - (self._count(system) if self._most.unit == "tokens" else 0)
        for at in reversed(range(len(messages))):
            if messages[at].role != "system":
                left -= self._count([messages[at].content]) if self._most.unit == "tokens" else 1
                if left < 0:
                    return at + 1
        return 0

    def _count(self, texts: Sequence[str]) -> int:
        return sum(len(self._tokenizer.encode(text)) for text in texts)

    def _require(self, shown: bool) -> None:
        if not shown:
            raise Withheld(
                f"The last message of the user's is not within the last {self._most}, "
                "which is all that may be sent."
            )


class _RecentSight:
    """Implements `Sight`."""

    def __init__(self, sight: Sight, shown: Preceding) -> None:
        self._sight, self.shown = sight, shown

    def answer(self, written: str, begun: str | None = None) -> Told:
        return self._sight.answer(written, begun)
