"""What a cloud gets to see of a conversation: all of it, or what a bridge's view leaves.

Where the cloud is sent what the edge reads there is nothing to choose. A bridge writes the
conversation anew for its cloud, so it may show less, or other words for some.
"""

from typing import NamedTuple, Protocol

from edgewise.prompts import Message


class Preceding(NamedTuple):
    """What an answer follows, as a cloud is told: messages, else a `text` that was given as ids."""

    messages: tuple[Message, ...] | None
    text: str = ""


class Sight(Protocol):
    """One answer's view. What it shows of the same is always the same: caches go by it."""

    @property
    def shown(self) -> Preceding:
        """What stands before the answer."""
        ...

    def answer(self, written: str) -> str:
        """What is shown of an answer so far.

        What is shown of a longer one begins alike. Raises a `CloudError` where nothing may be.
        """
        ...

    def reply(self, text: str, *, ended: bool) -> str | None:
        """What the cloud's words behind it mean here; None while more of them is needed to tell.

        `ended` where no more will come. Raises a `CloudError` where they may not be taken.
        """
        ...


class View(Protocol):
    """Makes a `Sight` for each answer."""

    def of(self, before: Preceding) -> Sight:
        """Of what stands before an answer. Raises a `CloudError` where nothing may be shown."""
        ...


class Plain:
    """Implements `View` and `Sight`: everything, as it is."""

    def __init__(self, before: Preceding | None = None) -> None:
        self._preceding = before or Preceding(None)

    @property
    def shown(self) -> Preceding:
        return self._preceding

    def of(self, before: Preceding) -> "Plain":
        return Plain(before)

    def answer(self, written: str) -> str:
        return written

    def reply(self, text: str, *, ended: bool) -> str:
        return text
