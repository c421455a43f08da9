"""What leaves for a consult, and the cloud model's answer to it."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from edgewise.errors import CloudProtocolError, CloudUnavailable
from edgewise.events import Candidate

# Bounds of what is believed. Engines count ids in 32 bits, with a sign.
MOST_IDS, MOST_CANDIDATES, MOST_SECONDS = 1 << 31, 20, 3600.0

ADDED = 64
"""More prompt tokens than an engine adds to the ids it was sent, such as an opening one."""

LEAST = -9999.0
"""Stands for the logarithm of no probability at all, which JSON and checks could not tell."""

# Of a probability of 1, in nats.
_ROUNDING = 1e-3

_Number = TypeVar("_Number", int, float)


class Outgoing:
    """What leaves for a consult or a prefetch: token ids, bytes of the message bodies, requests.

    A session adds to it in whichever thread sends; nothing travels to a model in this process.
    `requests` of its messages are billable; `repeats` of them had been sent before. `sequence` is
    all that is asked about, in the ids that travel. `request_id` is what logs on the way call the
    consult, once the session has named it.
    """

    def __init__(
        self,
        sequence: Sequence[int] = (),
        on_send: "Callable[[Outgoing, int, bytes], None] | None" = None,
        max_requests: int | None = None,
    ) -> None:
        """`on_send` is called before each message leaves, and may raise a `CloudError`."""
        self.ids = self.bytes = self.requests = self.repeats = 0
        self.sequence, self.max_requests, self._on_send = sequence, max_requests, on_send
        self.request_id: str | None = None

    def add(self, ids: int, message: bytes, *, billable: bool = True, again: bool = False) -> None:
        """A message is handed to a connection now, with the last so many `ids` in it.

        `billable`: it asks about the whole sequence. `again`: it was sent before. May raise a
        `CloudError`: then it must not be sent.
        """
        if billable and self.max_requests is not None and self.requests >= self.max_requests:
            raise CloudUnavailable("Another attempt could cost more than the limit.")
        if self._on_send is not None:
            self._on_send(self, ids, message)
        self.ids += ids
        self.bytes += len(message)
        self.requests += billable
        self.repeats += billable and again


Recorder = Callable[[Sequence[int]], Outgoing]
"""Begins to record what leaves about a sequence of ids."""


def metered(so_far: _Number | None, more: _Number | None) -> _Number | None:
    """A sum of a meter's counts, or of seconds; None once one of them is."""
    return None if so_far is None or more is None else so_far + more


class Verified(msgspec.Struct, frozen=True, array_like=True):
    """The cloud's view of an id that the edge wrote: its `logprob` there, and the cloud's choice.

    `id` is what the cloud would have written: its likeliest id, or with a temperature its own draw
    at that position, where the engine can draw. `best` is the logprob of its likeliest. In nats; an
    id of no probability at all has `LEAST`.
    """

    logprob: float
    id: int
    best: float

    @property
    def ratio(self) -> float:
        """The id's probability over that of the cloud's likeliest, from 0 to 1."""
        return math.exp(min(0.0, self.logprob - self.best))


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that the cloud wrote. Fewer than asked, with `stopped`, if the cloud ended the answer.

    `logprobs` (nats) go with `ids`; `top` holds the candidates for each. `cached` and `computed`
    are prompt tokens by the engine's own meter, None where it has none; `prompt` are all that it
    bills, cached or not. `written` is how many tokens the cloud wrote for it in a vocabulary of its
    own, None where they are `ids`. `verified` are the ids of the edge's that were to be verified.
    Of a passage that was read, only how many of them `stand`; then `ids` are in place of the rest.
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
        """Tokens that the cloud wrote, by its own count."""
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
        """Raise `CloudProtocolError` unless this answers a consult for `asked` tokens.

        `prompt` ids came before them, the last `verify` of which were to be verified; `size` is how
        many the vocabulary has, where that is known. A meter may count them once for each to be
        verified. Types are not checked: what was decoded has the right ones.
        """
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
        self._check_meter(prompt * max(1, verify))

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
