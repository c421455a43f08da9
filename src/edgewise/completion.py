"""What a cloud model answers to a consult."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec

from edgewise.errors import CloudProtocolError, CloudUnavailable
from edgewise.events import Candidate

MOST_IDS = 1 << 31
"""More than any vocabulary has: engines count ids in 32 bits, with a sign."""

MOST_CANDIDATES = 20
"""More for a token than anybody asks for."""

ADDED = 64
"""More prompt tokens than an engine adds to the ids it was sent, such as an opening one."""

MOST_SECONDS = 3600.0
"""More than any consult takes of an engine's time."""

# Of a probability of 1, in nats.
_ROUNDING = 1e-3


# A field of `Sent` has the other name.
_Body = bytes


class Sent:
    """What has travelled for a consult or a prefetch: token ids, and bytes of the messages' bodies.

    A session adds to it in whichever thread sends; nothing travels to a model in this process.
    `requests` of its messages were about tokens; `repeats` of them had been sent before. Of no more
    than `most` may be sent. `prefix` is the whole sequence that is asked about, in ids of the
    cloud's vocabulary. `request_id` is what logs on the way call the consult, once the session has
    named it; `under_way` is a prefetch that nobody waits for.
    """

    def __init__(
        self,
        prefix: Sequence[int] = (),
        leaves: "Callable[[Sent, int, _Body], None] | None" = None,
    ) -> None:
        """`leaves` is called before each message leaves, and may raise a `CloudError`."""
        self.ids = self.bytes = self.requests = self.repeats = 0
        self.prefix, self._leaves = list(prefix), leaves
        self.most: int | None = None
        self.request_id: str | None = None
        self.under_way: Future[None] | None = None

    def add(self, ids: int, message: _Body, *, tells: bool = True, again: bool = False) -> None:
        """A message is handed to a connection now, with so many `ids` in it.

        Unless it `tells` nothing, whoever has it knows the whole sequence that was asked about.
        `again`: it was sent before. May raise a `CloudError`: then it must not be sent.
        """
        if tells and self.most is not None and self.requests >= self.most:
            raise CloudUnavailable("Another attempt could cost more than the limit.")
        if self._leaves is not None:
            self._leaves(self, ids, message)
        self.ids += ids
        self.bytes += len(message)
        self.requests += tells
        self.repeats += again


def metered(so_far: int | None, more: int | None) -> int | None:
    """A sum of a meter's counts; None once one of them is."""
    return None if so_far is None or more is None else so_far + more


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What the cloud wrote. Ends early, with `stopped`, where the cloud ended the answer.

    `logprobs` (nats) go with `ids`; `top` holds the candidates for each. `cached` and `computed`
    are prompt tokens by the engine's own meter, None where it has none; `prompt` are all that it
    bills, cached or not. `written` is how many tokens the cloud wrote for it in a vocabulary of its
    own, None where they are `ids`.
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

    @property
    def billed(self) -> int:
        """Tokens that the cloud wrote, by its own count."""
        return len(self.ids) if self.written is None else self.written

    def check(
        self, *, asked: int, prompt: int, size: int | None = None, may_be_empty: bool = False
    ) -> None:
        """Raise `CloudProtocolError` unless this answers a consult for `asked` tokens.

        `prompt` ids came before them; `size` is how many the vocabulary has, where that is known.
        """
        if not self.ids and not may_be_empty:
            raise CloudProtocolError("The cloud answered a consult without any token.")
        if len(self.ids) > asked:
            raise CloudProtocolError(
                f"The cloud wrote {len(self.ids)} tokens where {asked} were asked for."
            )
        if len(self.logprobs) != len(self.ids) or len(self.top) not in (0, len(self.ids)):
            raise CloudProtocolError("The cloud's logprobs do not go with its tokens.")
        if any(len(top) > MOST_CANDIDATES for top in self.top):
            raise CloudProtocolError(
                f"The cloud told more than {MOST_CANDIDATES} candidates for a token."
            )
        self._check_ids(MOST_IDS if size is None else size)
        self._check_logprobs()
        self._check_meter(prompt)

    def _check_ids(self, size: int) -> None:
        listed = [*self.ids, *(candidate.id for top in self.top for candidate in top)]
        if not all(_is_count(token, size - 1) for token in listed):
            raise CloudProtocolError(f"The cloud answered with ids outside 0 to {size - 1}.")

    def _check_logprobs(self) -> None:
        told = [logprob for logprob in self.logprobs if logprob is not None]
        told += [candidate.logprob for top in self.top for candidate in top]
        if not all(_is_number(logprob) and logprob <= _ROUNDING for logprob in told):
            raise CloudProtocolError("The cloud told logprobs that are none.")

    def _check_meter(self, prompt: int) -> None:
        for count in (self.cached, self.computed):
            if count is not None and not _is_count(count, prompt):
                raise CloudProtocolError(
                    f"The cloud counts prompt tokens that are not among the {prompt} it was sent."
                )
        if self.prompt is not None and not _is_count(self.prompt, prompt + ADDED):
            raise CloudProtocolError(
                f"The cloud bills more prompt tokens than the {prompt} it was sent."
            )
        if self.prompt is not None and (self.cached or 0) > self.prompt:
            raise CloudProtocolError("The cloud counts more cached prompt tokens than it bills.")
        if self.written is not None and not _is_count(self.written, MOST_IDS):
            raise CloudProtocolError("The cloud counts tokens that it cannot have written.")
        seconds = self.engine_seconds
        if seconds is not None and not (_is_number(seconds) and 0 <= seconds <= MOST_SECONDS):
            raise CloudProtocolError("The cloud's own time is none that a consult can take.")


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
