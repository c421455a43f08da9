"""What a cloud model answers to a consult."""

import msgspec

from edgewise.errors import CloudProtocolError
from edgewise.events import Candidate


class Sent:
    """What has travelled for a consult so far: token ids, and bytes of the messages' bodies.

    A session adds to it in whichever thread sends; nothing travels to a model in this process.
    """

    __slots__ = ("bytes", "ids")

    def __init__(self) -> None:
        self.ids = self.bytes = 0

    def add(self, ids: int, size: int) -> None:
        """`ids` in a message of `size` bytes."""
        self.ids += ids
        self.bytes += size


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the cloud wrote. Ends early, with `stopped`, where the cloud ended the answer.

    `logprobs` (nats) go with `ids`; `top` holds the candidates for each. `cached` and `computed`
    are prompt tokens by the engine's own meter, None where it has none.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[tuple[Candidate, ...], ...] = ()
    stopped: bool = False
    cached: int | None = None
    computed: int | None = None
    engine_seconds: float | None = None

    def check(self, size: int) -> None:
        """Raise `CloudProtocolError` unless this is an answer in a vocabulary of `size` ids."""
        listed = [*self.ids, *(candidate.id for top in self.top for candidate in top)]
        if not self.ids:
            raise CloudProtocolError("The cloud answered a consult without any token.")
        if len(self.logprobs) != len(self.ids) or len(self.top) not in (0, len(self.ids)):
            raise CloudProtocolError("The cloud's logprobs do not go with its tokens.")
        if not all(0 <= token < size for token in listed):
            raise CloudProtocolError(f"The cloud answered with ids outside 0 to {size - 1}.")
