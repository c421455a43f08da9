"""What a cloud model answers to a consult."""

import msgspec

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
