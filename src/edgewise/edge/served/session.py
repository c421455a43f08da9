"""`ServedSession`: an answer's stream from a server, whose prefix cache makes rollbacks cheap.

The server is asked to go on from all ids, and streams its own greedy tokens with candidates for
each. As long as the answer takes these tokens, a step is the next line of the stream. When the
answer takes another (the cloud's, or a drawn one), the stream is closed, and a new one starts after
that token: the server computes only the ids that its prefix cache lacks.
"""

import math
import secrets
import time
from collections.abc import Callable, Generator, Sequence

import numpy as np

from edgewise.edge.base import EdgeModel, EdgeSession, Floats, Ids, Needs, Step, Written
from edgewise.edge.served.dialect import Dialect, ServedToken
from edgewise.edge.served.server import RECHECK
from edgewise.edge.vocabulary import common_prefix
from edgewise.errors import EdgeError, StaleStepError, UsageError
from edgewise.events import Candidate

AHEAD = 256
"""Most tokens that the server writes in one stream."""

# Bounds of a valid logprob: float32 holds the lower; rounding may lift a sure token's above 0.
_LEAST, _SURE = -1e30, 1e-3


class TopStep(Step):
    """A `Step` from a server's k likeliest ids; the other ids share the remaining probability."""

    def __init__(
        self, ids: Ids, logprobs: Floats, written: Written | None, size: int, *, position: int
    ) -> None:
        """Take the k likeliest `ids` of `size`, best first; `written` is None if not needed."""
        self.position, self.size = position, size
        self.proposed = int(ids[0])
        self._ids, self._logprobs, self._written = ids, logprobs, written
        rest = max(0.0, 1.0 - float(np.exp(logprobs.astype(np.float64)).sum()))
        # Rounded sums may exceed 1, and a logarithm follows.
        self._rest = max(rest, 1e-9)
        # An id outside is not likelier than the last inside.
        even = math.log(self._rest / max(1, size - len(ids)))
        self._other = min(even, float(logprobs[-1]))

    @property
    def logits(self) -> Floats:
        """Logprobs of the k likeliest ids, and -1e4 for all others: float32[size]."""
        # An id outside the k is then drawn only if a response format forbids all k.
        logits = np.full(self.size, -1e4, np.float32)
        logits[self._ids] = self._logprobs
        return logits

    @property
    def hidden(self) -> Floats:
        raise StaleStepError("A server's step has no hidden state.")

    @property
    def entropy(self) -> float:
        """Entropy in nats, estimated as the mean of its lower and its upper bound.

        It is off by less than 0.1 nats on average and 0.5 at most (100 steps drawn from
        SmolLM2-135M, `tests/smollm2/test_smollm2_served.py`).
        """
        # Lowest if as few other ids as possible share the rest of the probability, highest if all
        # share it evenly.
        logprobs = self._logprobs.astype(np.float64)
        known = -float((np.exp(logprobs) * logprobs).sum())
        return known - self._rest * (self._other + float(logprobs[-1])) / 2

    def top(self, k: int) -> tuple[Ids, Floats]:
        """Return the k likeliest ids and their logprobs, best first.

        If the server reported fewer, other ids follow, all with the same estimated logprob.
        """
        missing = min(k, self.size) - len(self._ids)
        if missing <= 0:
            return self._ids[:k], self._logprobs[:k]
        low = np.arange(len(self._ids) + missing, dtype=np.int32)
        others = np.setdiff1d(low, self._ids)[:missing]
        padding = np.full(missing, self._other, np.float32)
        return np.concatenate([self._ids, others]), np.concatenate([self._logprobs, padding])

    def logprob(self, token: int) -> float:
        at = np.flatnonzero(self._ids == token)
        return float(self._logprobs[at[0]]) if len(at) else self._other

    def candidates(self, k: int) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(int(token), float(logprob))
            for token, logprob in zip(self._ids[:k], self._logprobs[:k], strict=True)
        )


class ServedSession(EdgeSession):
    """An `EdgeSession` of a `ServedEdge`. Its steps raise `EdgeError` if the server fails."""

    def __init__(
        self,
        model: EdgeModel,
        dialect: Dialect,
        needs: Needs,
        top: int,
        *,
        release: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        """Start without ids; `needs` and `top` are described at `EdgeModel.session`.

        `release()` frees the session's slot. `check()` is called before the first request, and when
        the server's connection has ended since: it raises if the server now runs another model.
        Raises `UsageError` if `needs` has hidden states or `top` is more than the server reports.
        """
        super().__init__(model, needs)
        kind = dialect.kind
        if top > kind.most:
            raise UsageError(
                f"{kind.program} gives at most {kind.most} candidates of a token, and the "
                f"router reads {top}",
                hint="choose another router, such as entropy",
                setting="router",
            )
        self._dialect, self._tokenizer, self._release = dialect, dialect.tokenizer, release
        self._check_server = check
        self._trusted_until = 0.0
        """Time (`time.monotonic`) until which an ended `_connection` leads to no check."""
        self._text, self._top, self._prompt = Needs.TEXT in needs, max(kind.top, top), 0
        self._served: list[int] = []
        """The ids that were sent, and those that the stream wrote after them."""
        self._steps: dict[int, TopStep] = {}
        """Steps by position; each predicts what follows so many ids of `_served`."""
        self._stream: Generator[ServedToken] | None = None
        self._until = 0
        """Position at which the stream ends, if it reports every token."""
        # A server lists its slots with their seeds; greedy tokens do not depend on it.
        self._seed = secrets.randbits(31)

    def open(self, ids: Sequence[int]) -> int:
        """Make `ids` the sequence; return how many leading ones the server should have cached.

        Raises `ContextOverflow` if they do not fit, `UsageError` once closed, or for ids that are
        unknown or cannot be sent as text.
        """
        self._require_room(0, ids)
        try:
            # Now, as an error of the prompt; later it would be one of the server.
            self._dialect.prompt(ids)
        except EdgeError as error:
            raise UsageError(error.message, hint=error.hint, setting=error.setting) from error
        self._ids, self._prompt, self._opened = list(ids), len(ids), True
        return common_prefix(self._served, ids)

    def step(self) -> Step:
        self._check_open()
        self._require_ids()
        end = len(self._ids)
        while (step := self._known(end)) is None:
            if new := self._stream is None or len(self._served) > end:
                self._start(end)
            if self._read() or end >= self._until:
                continue
            # The stream leaves some tokens out; a request for this position alone reports one.
            self._served = self._ids[:end]
            token = self._dialect.single(self._served, self._top, self._seed)
            if token is not None:
                self._steps[end] = self._step(token, end)
            elif new:
                raise self._dialect.server.broken("it ended the answer and gave no reason")
        return step

    def steps(self, ids: Sequence[int]) -> list[Step]:
        made: list[Step] = []
        for token in ids:
            self.extend([token])
            made.append(self.step())
        return made

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stop()
            self._release()

    def _known(self, end: int) -> TopStep | None:
        """Return the step after `end` ids, None if it did not come; end a stream of other ids."""
        shared = min(len(self._served), end)
        if self._served[:shared] != self._ids[:shared]:
            self._stop(common_prefix(self._served, self._ids))
        return self._steps.get(end)

    def _stop(self, position: int = 0) -> None:
        """Close the stream, and forget what the server holds from `position` on."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        del self._served[position:]
        self._steps = {at: step for at, step in self._steps.items() if at <= position}

    def _start(self, end: int) -> None:
        server = self._dialect.server
        due = time.monotonic() >= self._trusted_until
        # A server that was started anew has closed its connection, and may run another model.
        if not self._served or (due and self._connection.get_extra_info("is_readable")):
            self._check_server()
            self._connection = server.connection
            self._trusted_until = time.monotonic() + RECHECK if server.closes else 0.0
        self._stop(end)
        self._served = self._ids[:end]
        # A context of n ids predicts one token more.
        tokens = min(AHEAD, self._context + 1 - end)
        self._until = end + tokens
        self._stream = self._dialect.stream(self._ids[:end], tokens, self._top, self._seed)

    def _read(self) -> bool:
        """Read the stream's next token; return False if the stream is over."""
        assert self._stream is not None
        at = len(self._served)
        token = next(self._stream, None)
        if token is None:
            self._stop(at)
            return False
        self._steps[at] = self._step(token, at)
        # Drafts go no further back.
        self._steps.pop(at - AHEAD, None)
        self._served.append(token.token)
        return True

    def _step(self, token: ServedToken, at: int) -> TopStep:
        """Return a token's candidates as a step. Raises `EdgeError` for invalid candidates."""
        size, broken = self._tokenizer.size, self._dialect.server.broken
        known = [(one, logprob) for one, logprob in token.top if logprob is not None]
        known.sort(key=lambda one: -one[1])
        ids = [one for one, _ in known]
        if unknown := [one for one in (token.token, *ids) if not 0 <= one < size]:
            raise broken(f"the id {unknown[0]}")
        logprobs = np.array([logprob for _, logprob in known])
        in_bounds = np.all((logprobs > _LEAST) & (logprobs <= _SURE))
        if not ids or len(set(ids)) < len(ids) or not in_bounds:
            raise broken("invalid candidates")
        written = None
        if self._text:
            written = Written(self._served[:at], min(self._prompt, at), self._tokenizer)
        # Rounding may have lifted one above 0.
        logprobs = np.minimum(logprobs, 0).astype(np.float32)
        return TopStep(np.array(ids, np.int32), logprobs, written, size, position=at)
