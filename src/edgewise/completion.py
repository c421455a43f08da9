"""A consult (one question to the cloud model in an answer): what is sent, and the cloud's reply."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from edgewise.errors import CloudProtocolError, CloudUnavailable
from edgewise.events import Candidate

# Bounds of what is believed. Engines count ids in 32 bits, with a sign.
MOST_IDS, MOST_CANDIDATES, MOST_SECONDS = 1 << 31, 20, 3600.0

ADDED = 64
"""How many prompt tokens an engine may bill beyond the ids it was sent, such as a BOS token."""

LEAST = -9999.0
"""The logprob that stands for a probability of 0, since JSON has no minus infinity."""

# Of a probability of 1, in nats.
_ROUNDING = 1e-3

_Number = TypeVar("_Number", int, float)


class Outgoing:
    """Counts of the token ids, bytes and requests that are sent for one consult or one prefetch.

    A prefetch sends ids ahead of a consult, so that the cloud prefills them early. `ids` and
    `bytes` are sums over all messages, 0 for a model in this process. `requests` counts the
    messages that the provider bills, `repeats` those of them that were sent again after a failure.
    `request_id` names the consult in servers' logs; None until it is chosen.
    """

    def __init__(
        self,
        on_send: "Callable[[Outgoing, Sequence[int], bytes], None] | None" = None,
        max_requests: int | None = None,
    ) -> None:
        """`on_send` is called before each message leaves and may raise a `CloudError` to stop it.

        It gets this object, the ids in the message, and the message. More than `max_requests`
        billable requests are refused; None sets no limit.
        """
        self.ids = self.bytes = self.requests = self.repeats = 0
        self.max_requests, self._on_send = max_requests, on_send
        self.request_id: str | None = None

    def add(
        self, ids: Sequence[int], message: bytes, *, billable: bool = True, again: bool = False
    ) -> None:
        """Count a message that is about to be handed to a connection; `ids` are all ids in it.

        `billable`: it asks about the whole sequence, so the provider bills it. `again`: it was sent
        before. Raises a `CloudError`, and counts nothing, if it must not be sent: because of a
        limit on billable requests, or because the record of what is sent cannot be written.
        """
        if billable and self.max_requests is not None and self.requests >= self.max_requests:
            raise CloudUnavailable("Another attempt could cost more than the limit.")
        if self._on_send is not None:
            self._on_send(self, ids, message)
        self.ids += len(ids)
        self.bytes += len(message)
        self.requests += billable
        self.repeats += billable and again

    def retract(self) -> None:
        """Subtract 1 from `requests`: the engine declined the last one, so it is not billed."""
        self.requests -= 1


Recorder = Callable[[], Outgoing]
"""A function that returns the `Outgoing` to count what is sent of a sequence of token ids."""


def metered(so_far: _Number | None, more: _Number | None) -> _Number | None:
    """Return the sum of two figures of usage reports; None if either of them is missing."""
    return None if so_far is None or more is None else so_far + more


class Verified(msgspec.Struct, frozen=True, array_like=True):
    """The cloud's verdict on one draft token: how likely it is, and what the cloud would write.

    `logprob` is that of the draft token, `best` that of the cloud's likeliest token, in nats;
    `LEAST` stands for a probability of 0. `id` is the cloud's own choice for the position: its
    likeliest token or, with a temperature, one that the engine draws, if it can.
    """

    logprob: float
    id: int
    best: float

    @property
    def ratio(self) -> float:
        """The probability of the edge's token over that of the cloud's likeliest, from 0 to 1."""
        return math.exp(min(0.0, self.logprob - self.best))


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud's answer to a consult: tokens that it wrote, or verdicts on draft tokens.

    `logprobs` (nats or None) has an item for each of `ids`, and so has `top` (the likeliest ids)
    unless it is empty. `stopped`: the cloud ended the answer. `verified` has a verdict for each
    draft token sent for verification. A cloud that verifies passages leaves it empty: it accepts
    the first `stand` draft tokens, and `ids` replace the rest.

    By the engine's usage report, None without one: `cached` and `computed` (prefilled) count prompt
    tokens, `prompt` all billed prompt tokens; `engine_seconds` is the engine's own time; `written`
    counts output tokens in the cloud's vocabulary (None: as many as `ids`).
    """

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[tuple[Candidate, ...], ...] = ()
    stopped: bool = False
    cached: int | None = None
    computed: int | None = None
    engine_seconds: float | None = None
    written: int | None = None
    prompt: int | None = None
    verified: tuple[Verified, ...] = ()
    stand: int | None = None

    @property
    def billed(self) -> int:
        """Output tokens by the engine's count, in its own vocabulary; without one, `len(ids)`."""
        return len(self.ids) if self.written is None else self.written

    def validate(
        self,
        *,
        asked: int,
        prompt: int,
        size: int | None = None,
        may_be_empty: bool = False,
        verify: int = 0,
    ) -> None:
        """Raise `CloudProtocolError` unless this is a valid answer to a consult for `asked` tokens.

        The consult was about `prompt` ids; the last `verify` of these are drafts, each of which
        needs a verdict. `size` is that of the vocabulary, None if unknown. With `asked` above 0
        there must be a token, unless `may_be_empty`. Types are not checked.
        """
        # With `may_be_empty` the engine may leave out an end token.
        if not self.ids and asked and not may_be_empty:
            raise CloudProtocolError("The cloud answered a consult without any token.")
        _require(len(self.ids) <= asked, "tokens", f"more than the {asked} that were asked for")
        sizes = {len(self.ids)}
        holds = {len(self.logprobs)} == sizes and (not self.top or {len(self.top)} == sizes)
        _require(holds, "logprobs", "not as many as tokens")
        few = all(len(top) <= MOST_CANDIDATES for top in self.top)
        _require(few, "candidates", f"more than {MOST_CANDIDATES} for a token")
        verified = self.verified
        _require(len(verified) == verify, "verification", f"not of the {verify} that were sent")
        last = (MOST_IDS if size is None else size) - 1
        tops = [candidate for top in self.top for candidate in top]
        ids = [*self.ids, *(candidate.id for candidate in tops), *(one.id for one in verified)]
        _require(all(0 <= token <= last for token in ids), "ids", f"outside 0 to {last}")
        logprobs = [*self.logprobs, *(candidate.logprob for candidate in tops)]
        logprobs += [value for one in verified for value in (one.logprob, one.best)]
        holds = all(-math.inf < one <= _ROUNDING for one in logprobs if one is not None)
        _require(holds, "logprobs", "not logarithms of probabilities")
        holds = all(one.logprob <= one.best + _ROUNDING for one in verified)
        _require(holds, "verification", "an id likelier than the likeliest")
        # Some engines count the prompt once for each draft.
        self._check_meter(prompt * max(1, verify))

    def require_defined(self, name: str, defines: Callable[[int], bool]) -> None:
        """Raise `CloudProtocolError` if the edge vocabulary does not define an id of a token.

        `name` is the cloud model's; `defines(id)` says whether the id stands for anything.
        """
        for token in (*self.ids, *(one.id for one in self.verified)):
            if not defines(token):
                raise CloudProtocolError(
                    f"{name!r} returned id {token}, which the edge vocabulary does not define",
                    hint="choose two models of one family, or name its own tokenizer",
                    setting="cloud_tokenizer",
                )

    def _check_meter(self, prompt: int) -> None:
        for name, count, most in (
            ("cached prompt tokens", self.cached, prompt),
            ("computed prompt tokens", self.computed, prompt),
            ("billed prompt tokens", self.prompt, prompt + ADDED),
            ("written tokens", self.written, MOST_IDS),
        ):
            _require(count is None or 0 <= count <= most, name, f"not from 0 to {most}")
        if self.prompt is not None:
            _require((self.cached or 0) <= self.prompt, "cached tokens", "more than it bills")
        seconds = self.engine_seconds
        holds = seconds is None or 0 <= seconds <= MOST_SECONDS
        _require(holds, "own time", f"not from 0 to {MOST_SECONDS:.0f} s")


def _require(holds: bool, what: str, fault: str) -> None:
    if not holds:
        raise CloudProtocolError(f"The cloud's reply is not valid: its {what}: {fault}.")
