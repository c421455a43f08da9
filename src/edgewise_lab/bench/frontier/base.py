"""What the frontier compares: systems that answer a question, and all that an answer cost."""

from typing import Protocol

import msgspec

from edgewise_lab.evaluation.systems import Outcome
from edgewise_lab.evaluation.tasks.base import Question


class CloudRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request that an answer made of the cloud, also one whose reply was not used.

    Of `prompt` tokens sent an earlier request of the same answer had the first `seen`, as prompt or
    reply: a provider's cache may hold them, whatever its rules. `written` tokens came back, or were
    asked for in vain. `cached` and `computed` are prompt tokens by the engine's own meter,
    `engine_seconds` its own time; None where it has none.
    """

    prompt: int
    seen: int
    written: int
    cached: int | None = None
    computed: int | None = None
    engine_seconds: float | None = None


class MeasuredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of one system.

    `outcome` has its quality and its duration. `ttft` and `gap` are seconds to the first token, and
    the longest between two, as a user sees them. The edge made `decodes` forward passes over
    `positions` ids in all, prompt included. `sent` and `received` bytes travelled over the link;
    None where there was none. `accepted` of `drafted` tokens stood where drafts were verified.
    """

    outcome: Outcome
    ttft: float
    gap: float
    decodes: int = 0
    positions: int = 0
    requests: tuple[CloudRequest, ...] = ()
    sent: int | None = None
    received: int | None = None
    drafted: int = 0
    accepted: int = 0


class MeasuredSystem(Protocol):
    """Answers questions one at a time, greedily, and says what each cost."""

    def answer(self, question: Question) -> MeasuredAnswer:
        """Raises a `CloudError` where the cloud fails: a figure would be a mixture."""
        ...
