"""How a bridge reaches its cloud: it hands over text, and gets bytes of text back."""

from concurrent.futures import Future
from typing import Protocol

import msgspec

from edgewise.cloud.view import Preceding
from edgewise.sampling import Sampling
from edgewise.verdict import Sent


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one request of a consult brought: `data` behind what came before it.

    It may end inside of a character. `ended` where the cloud ended the answer there. `tokens` it
    wrote in its own vocabulary; `cached` and `computed` are prompt tokens by the engine's own
    meter, `prompt` all that it bills. None is what it does not tell.
    """

    data: bytes
    ended: bool
    tokens: int | None = None
    cached: int | None = None
    computed: int | None = None
    prompt: int | None = None
    engine_seconds: float | None = None


class Going(Protocol):
    """One consult: each request goes on behind what those before it brought."""

    @property
    def exhausted(self) -> bool:
        """Whether so much was written that if nothing of it is whole, nothing will be."""
        ...

    def more(self, sampling: Sampling, deadline: float, sent: Sent | None = None) -> Future[Part]:
        """The next request. The future fails with a `CloudError`."""
        ...


class TransportSession(Protocol):
    """One answer's conversation with a cloud, in text."""

    @property
    def puts_blanks(self) -> bool:
        """Whether the cloud reads an answer as if a blank stood before it."""
        ...

    def begin(self, answer: str, words: int) -> Going:
        """A consult behind `answer`, which ends with no blank, for so many words."""
        ...

    def push(self, answer: str, sent: Sent | None = None) -> int:
        """As `CloudSession.push`, of an answer that is whole words."""
        ...

    def close(self) -> None:
        """Forget the conversation."""
        ...


class Transport(Protocol):
    """What a bridge stands on."""

    def open(self, before: Preceding) -> TransportSession:
        """A session about what is shown. Raises a `CloudError` where the cloud cannot read it."""
        ...
