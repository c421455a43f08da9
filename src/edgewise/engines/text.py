"""The contract of an API that takes and returns text: it goes on with an answer that was begun.

What an engine by ids is to the vocabulary, it is to any: see `edgewise.engines.base.Engine`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from edgewise.engines.base import NOBODY, Client, Described
from edgewise.prompts import Message
from edgewise.sampling import Sampling


class GoneOn(msgspec.Struct, frozen=True, kw_only=True):
    """What an API wrote, as it came: it may begin with what it was sent.

    `ended` where it ended the answer there, and was not cut. `prompt`, `cached` and `written` are
    tokens by the provider's own usage, `cached` those of the `prompt` that it had; None where it
    does not tell.
    """

    text: str
    ended: bool
    prompt: int | None = None
    cached: int | None = None
    written: int | None = None


class TextEngine(ABC):
    """One API. Methods run in one event loop; `close` gives its connections back.

    `reasons` tells whether it can go on inside of a block of reasoning that was begun.
    """

    dialect: ClassVar[str]
    reasons: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        """`url` says which API it is."""
        self.url = url

    @abstractmethod
    async def go_on(
        self,
        messages: Sequence[Message],
        answer: str,
        n: int,
        sampling: Sampling,
        client: Client = NOBODY,
    ) -> GoneOn:
        """At most `n` tokens behind `answer`, the beginning of a reply to `messages`; may be empty.

        Raises a `CloudError`: `CloudRejected` where the API does not take an answer that was begun.
        """

    @abstractmethod
    async def describe(self) -> Described:
        """What it serves; raises a `CloudError` where it is not of this dialect."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""
