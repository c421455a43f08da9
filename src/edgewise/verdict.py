"""What a cloud model answers to a consult."""

import msgspec

from edgewise.events import Candidate


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
