"""`LogitsStep`: the `Step` of engines that return logits, with or without a hidden state."""

import math
from collections.abc import Callable
from threading import Lock

import numpy as np

from edgewise.edge.base import Floats, Ids, Needs, Step, Written
from edgewise.errors import StaleStepError
from edgewise.events import Candidate

_BLOCK = 128

# Logits per `exp` call, few enough that the intermediate arrays stay in the processor's cache.
_PART = 1 << 14

_ONES = np.ones(_PART, np.float32)

# As numbers: testing a `Flag` calls Python code, and every step tests several.
_ENTROPY, _TOP, _LOGITS, _HIDDEN = (
    need.value for need in (Needs.ENTROPY, Needs.TOP, Needs.LOGITS, Needs.HIDDEN)
)


def top_ids(logits: Floats, k: int) -> Ids:
    """Return the k likeliest ids (int32), best first; of equal logits the lower id first."""
    n = len(logits)
    k = min(k, n)
    blocks = n // _BLOCK
    if blocks < 4 * k:
        return np.argsort(-logits, kind="stable")[:k].astype(np.int32)
    # The k-th largest of the blocks' maxima is at most the k-th largest logit, so only the few that
    # are not below it are sorted: a third of the time of `np.partition` for 150,000 logits.
    maxima = logits[: blocks * _BLOCK].reshape(_BLOCK, blocks).max(axis=0)
    bound = np.partition(maxima, -max(k, 1))[-max(k, 1)]
    candidates = np.flatnonzero(logits >= bound)
    order = np.argsort(-logits[candidates], kind="stable")[:k]
    return candidates[order].astype(np.int32)


class LogitsStep(Step):
    """A `Step` whose logits and hidden state are views into the engine's memory.

    `is_fresh()` tells whether these views are still valid. If sessions share an engine, the engine
    calls `keep` before it decodes for another session, while other threads may read this step.
    """

    def __init__(
        self,
        position: int,
        logits: Floats,
        hidden: Floats | None,
        *,
        is_fresh: Callable[[], bool],
        buffer: Floats,
        written: Written | None = None,
        shared: bool = False,
    ) -> None:
        """Take the rows of one position: `logits` float32[size], `hidden` float32[d] or None.

        `buffer` is scratch space, float32[size], of a session. With `shared`, the properties
        `logits` and `hidden` return copies.
        """
        self.position = position
        self.size = len(logits)
        self.proposed = int(logits.argmax())
        self.is_fresh = is_fresh
        self._buffer = buffer
        self._owned = 0
        # Both are computed when first asked for: a pass over 150,000 logits takes noticeable time.
        self._figures: tuple[float, float] | None = None
        self._top: tuple[Ids, Floats] | None = None
        self._logits = logits
        self._hidden = hidden
        self._written = written
        self._shared, self.kept = shared, False
        # The engine's thread may call `keep` while the session's thread reads.
        self._reading = Lock()

    def own(self, needs: Needs, top: int = 0) -> None:
        """Keep what `needs` names readable after the next decode; `Needs.TOP` keeps `top` ids."""
        wanted = needs.value
        if wanted & _ENTROPY:
            self._normalised()
        if wanted & _TOP:
            self.top(top)
        with self._reading:
            if wanted & _LOGITS:
                self._keep_logits()
            if wanted & _HIDDEN:
                self._keep_hidden()

    def keep(self) -> None:
        """Copy what is still a view into the engine's memory; called before the engine decodes."""
        with self._reading:
            self._keep_logits()
            self._keep_hidden()
            self.kept = True

    def _keep_logits(self) -> None:
        if not self._owned & _LOGITS:
            self._logits = self._logits.copy()
            self._owned |= _LOGITS

    def _keep_hidden(self) -> None:
        if self._hidden is not None and not self._owned & _HIDDEN:
            self._hidden = self._hidden.copy()
            self._owned |= _HIDDEN

    def _check(self, need: int) -> None:
        if not self._owned & need and not self.is_fresh():
            raise StaleStepError(
                f"The {Needs(need).name} of position {self.position} was read after the engine's "
                "next decode",
                hint="name it in the session's `needs`",
            )

    def _normalised(self) -> tuple[float, float]:
        """Return the entropy and log(sum(exp(logits))), computed in one pass over the logits."""
        if self._figures is not None:
            return self._figures
        with self._reading:
            self._check(_LOGITS)
            highest = self._logits[self.proposed]
            total = weighted = 0.0
            for at in range(0, self.size, _PART):
                part = self._logits[at : at + _PART]
                shifted = np.subtract(part, highest, out=self._buffer[: len(part)])
                weights = np.exp(shifted)
                # A product with ones takes a third of the time of a sum.
                total += float(weights.dot(_ONES[: len(part)]))
                weighted += float(weights.dot(shifted))
        log_total = math.log(total)
        self._figures = log_total - weighted / total, log_total + float(highest)
        return self._figures

    @property
    def logits(self) -> Floats:
        with self._reading:
            self._check(_LOGITS)
            # Another session may decode, and overwrite a view, while it is read.
            if self._shared:
                self._keep_logits()
            return self._logits

    @property
    def hidden(self) -> Floats:
        with self._reading:
            self._check(_HIDDEN)
            if self._hidden is None:
                raise StaleStepError("This step was computed without hidden states.")
            if self._shared:
                self._keep_hidden()
            return self._hidden

    @property
    def entropy(self) -> float:
        return self._normalised()[0]

    def top(self, k: int) -> tuple[Ids, Floats]:
        if self._top is None or len(self._top[0]) < k:
            with self._reading:
                self._check(_LOGITS)
                ids = top_ids(self._logits, k)
                self._top = ids, self._logits[ids]
        return self._top[0][:k], self._top[1][:k]

    def logprob(self, token: int) -> float:
        if token == self.proposed and self._top is not None:
            return float(self._top[1][0]) - self._normalised()[1]
        with self._reading:
            self._check(_LOGITS)
            logit = float(self._logits[token])
        return logit - self._normalised()[1]

    def candidates(self, k: int) -> tuple[Candidate, ...]:
        ids, logits = self.top(k)
        log_sum = self._normalised()[1]
        return tuple(
            Candidate(int(token), float(logit) - log_sum)
            for token, logit in zip(ids, logits, strict=True)
        )
