"""How a bridge reaches its cloud: it hands over text, and gets bytes of text back."""

from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec

from edgewise.cloud.view import Preceding
from edgewise.completion import Sent
from edgewise.sampling import Sampling

WORD = 8
"""Tokens that a cloud elsewhere is asked for at once, for a word: enough for 19 of 20."""

STEP = 2
"""The same in this process, where asking again costs no round trip."""

LONGEST = 32
"""Tokens after which a word counts as none."""

FURTHER = 4
"""Tokens more for each further word."""

AT_ONCE = 256
"""Most tokens that it is asked for at once, however many words are wanted."""


class Portion(NamedTuple):
    """Tokens that a request of a consult asks for, and after how `many` no more are asked."""

    step: int
    many: int

    @property
    def requests(self) -> tuple[int, int]:
        """How many there may be, and tokens of each."""
        return -(-self.many // self.step), self.step


def portion(words: int, *, local: bool = False) -> Portion:
    """What is asked of a cloud for so many words; one in this process is asked little at once."""
    further = FURTHER * (words - 1)
    return Portion(STEP if local else min(WORD + further, AT_ONCE), LONGEST + further)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one request of a consult brought: `data` behind what came before it.

    It may end inside of a character. `ended` where the cloud ended the answer there. `tokens` it
    wrote in its own vocabulary; `cached` and `computed` are prompt tokens by the engine's own
    meter, `prompt` all of them as it bills them. None is what it does not tell.
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

    @property
    def holds_lines(self) -> bool:
        """Whether ends of lines are held back at the end of an answer, as blanks are."""
        ...

    @property
    def leaves_thoughts(self) -> bool:
        """Whether a block of reasoning that is over is left out of the answer."""
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
