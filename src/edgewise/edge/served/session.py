"""One answer's stream from a server: the server runs ahead, its prefix cache is the rollback.

The server is asked to go on from all ids, and streams its own greedy tokens with the candidates of
each. As long as the answer takes these tokens, a step is the next line of the stream. When it takes
another (the cloud's, or a drawn one), the stream is closed and asked again from the new prefix, of
which the server computes only what is new.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from edgewise.edge.base import Floats, Ids, Step, Written
from edgewise.edge.kv import common_prefix
from edgewise.edge.served.dialect import Dialect, Told
from edgewise.errors import ContextOverflow, StaleStepError, UsageError
from edgewise.events import Candidate

AHEAD = 256
"""Most tokens that one stream writes."""

_SURE = 1e-3
"""How far above 0 rounding may put the logprob of a sure token."""


class TopStep:
    """Implements `Step` of the k likeliest ids and their logprobs, best first; owns its numbers.

    The other ids share what is left of the probability.
    """

    def __init__(
        self, ids: Ids, logprobs: Floats, written: Written, size: int, *, text: bool
    ) -> None:
        self.position, self.size = len(written.ids), size
        self.proposed = int(ids[0])
        self._ids, self._logprobs, self._written, self._text = ids, logprobs, written, text
        rest = max(0.0, 1.0 - float(np.exp(logprobs.astype(np.float64)).sum()))
        self._rest = max(rest, 1e-9)
        # An id outside is not likelier than the last inside.
        even = math.log(self._rest / max(1, size - len(ids)))
        self._other = min(even, float(logprobs[-1]))

    @property
    def logits(self) -> Floats:
        """Logprobs; those outside the k likeliest are alike."""
        logits = np.full(self.size, self._other, np.float32)
        logits[self._ids] = self._logprobs
        return logits

    @property
    def hidden(self) -> Floats:
        raise StaleStepError("A server's step has no hidden state.")

    @property
    def written(self) -> Written:
        if not self._text:
            raise StaleStepError("This step was computed without its text.")
        return self._written

    @property
    def entropy(self) -> float:
        """Between the bounds that the k likeliest set.

        It is least where as few of the others as can be share the rest of the probability, and
        greatest where all do. The mean of both is off by less than 0.1 nats in the mean and 0.5 at
        most (100 steps drawn from SmolLM2-135M, `tests/smollm2/test_smollm2_served.py`).
        """
        logprobs = self._logprobs.astype(np.float64)
        known = -float((np.exp(logprobs) * logprobs).sum())
        return known - self._rest * (self._other + float(logprobs[-1])) / 2

    def top(self, k: int) -> tuple[Ids, Floats]:
        """Where the server told fewer than `k`, others, which are alike, stand behind them."""
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


class ServedSession:
    """Implements `EdgeSession`. Every method that reads may raise `EdgeError`."""

    def __init__(
        self,
        dialect: Dialect,
        context: int,
        *,
        text: bool,
        top: int,
        release: Callable[[], None],
    ) -> None:
        self._dialect, self._tokenizer, self._context = dialect, dialect.tokenizer, context
        self._release = release
        self._text, self._top = text, _most(dialect, top)
        self._ids: list[int] = []
        self._prompt = 0
        self._served: list[int] = []
        """The ids that the server has and those that it went on with."""
        self._steps: dict[int, TopStep] = {}
        """By position; each is of the ids that `_served` has before it."""
        self._stream: Iterator[Told] | None = None
        self._closing = ExitStack()
        self._closed = False

    @property
    def position(self) -> int:
        return len(self._ids)

    def open(self, ids: Sequence[int]) -> int:
        """Returns how many the server was sent by this session; its cache may hold more."""
        self._check(0, ids)
        self._ids, self._prompt = list(ids), len(ids)
        return common_prefix(self._served, ids)

    def extend(self, ids: Sequence[int]) -> None:
        if not self._ids:
            self.open(ids)
            return
        self._check(len(self._ids), ids)
        self._ids.extend(ids)

    def rewind(self, position: int) -> None:
        self._check_open()
        if not 0 <= position <= len(self._ids):
            raise ValueError(f"cannot rewind to {position}: the session holds {len(self._ids)} ids")
        del self._ids[position:]

    def checkpoint(self, position: int) -> None: ...

    def step(self) -> Step:
        self._check_open()
        end = len(self._ids)
        if not end:
            raise UsageError(
                "A session has no next token before it has ids", hint="open it with a prompt"
            )
        while (step := self._known(end)) is None:
            if self._stream is None or len(self._served) > end:
                self._start(end)
            if not self._read() and end not in self._steps:
                # The server says nothing of some tokens; one request for this position does.
                self._steps[end] = self._asked(end)
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

    def _check(self, before: int, ids: Sequence[int]) -> None:
        self._check_open()
        if not all(0 <= token < self._tokenizer.size for token in ids):
            raise UsageError(f"The model has ids from 0 to {self._tokenizer.size - 1} only.")
        if before + len(ids) > self._context:
            raise ContextOverflow(
                f"{before + len(ids)} tokens do not fit in the context of {self._context}",
                hint="shorten the prompt, or start the server with a larger context",
                setting="ctx",
            )

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("The session or its model is closed", hint="open a new one")

    def _known(self, end: int) -> TopStep | None:
        """The step behind the ids, if the server has written it; a stream that left them ends."""
        shared = min(len(self._served), end)
        if self._served[:shared] != self._ids[:shared]:
            self._stop(common_prefix(self._served, self._ids))
        return self._steps.get(end)

    def _stop(self, position: int = 0) -> None:
        """Close the stream; what was served from `position` on holds no more."""
        self._stream = None
        self._closing.close()
        del self._served[position:]
        self._steps = {at: step for at, step in self._steps.items() if at <= position}

    def _start(self, end: int) -> None:
        self._stop(end)
        self._served = self._ids[:end]
        tokens = min(AHEAD, self._context + 1 - end)
        self._stream = self._dialect.stream(self._ids[:end], tokens, self._top, self._closing)

    def _read(self) -> bool:
        """The stream's next step; False where it has none, and the stream is over."""
        assert self._stream is not None
        at = len(self._served)
        told = next(self._stream, None)
        if told is None:
            self._stop(at)
            return False
        self._steps[at] = self._step(told, at)
        self._served.append(told.token)
        return True

    def _asked(self, end: int) -> TopStep:
        """The step by a request of its own."""
        self._served = self._ids[:end]
        return self._step(self._dialect.asked(self._ids[:end], self._top), end)

    def _step(self, told: Told, at: int) -> TopStep:
        known = [token for token, _ in told.top]
        ids = np.array(self._valid([told.token, *known])[1:], np.int32)
        logprobs = np.array([logprob for _, logprob in told.top], np.float32)
        falling = bool(len(ids)) and bool(np.all(np.diff(logprobs) <= 0))
        # A number that is none compares as nothing does.
        if not falling or not logprobs[0] <= _SURE or len(set(known)) < len(known):
            raise self._dialect.server.broken("candidates that are not in order")
        written = Written(self._served[:at], min(self._prompt, at), self._tokenizer)
        return TopStep(ids, logprobs, written, self._tokenizer.size, text=self._text)

    def _valid(self, ids: list[int]) -> list[int]:
        for token in ids:
            if not 0 <= token < self._tokenizer.size:
                raise self._dialect.server.broken(f"the id {token}")
        return ids


def _most(dialect: Dialect, top: int) -> int:
    """How many candidates are asked for. Raises `UsageError` for more than the server tells."""
    if top > dialect.most:
        raise UsageError(
            f"{dialect.program} tells at most {dialect.most} candidates of a token, and the router "
            f"reads {top}",
            hint="choose another router, such as entropy",
            setting="router",
        )
    return max(dialect.top, top)
