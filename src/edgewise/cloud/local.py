"""The large model in this process: a second GGUF on a thread of its own."""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from edgewise.cloud.base import Prefix
from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Tokenizer
from edgewise.errors import (
    CloudError,
    CloudRejected,
    CloudTimeout,
    ContextOverflow,
    EdgewiseError,
    VocabularyMismatch,
)
from edgewise.events import Candidate
from edgewise.sampling import Sampling
from edgewise.verdict import Verdict

TOP = 5
"""Candidates returned for every token."""

_KEPT = Needs.ENTROPY | Needs.TOP | Needs.LOGITS


_log = logging.getLogger(__name__)


class LocalCloud:
    """Implements `CloudModel` over any `EdgeModel`. No socket is opened."""

    def __init__(self, model: EdgeModel) -> None:
        self.name = model.name
        self.model = model
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cloud")

    def open(self, ids: Sequence[int]) -> "LocalSession":
        # On the thread, so that it comes after the closing of an earlier session.
        opened = self._thread.submit(self.model.session, _KEPT, top=TOP)
        return LocalSession(opened.result(), self.model.tokenizer.eos_ids, self._thread, ids)

    def check(self, tokenizer: Tokenizer) -> str:
        if tokenizer.fingerprint() != self.model.tokenizer.fingerprint():
            raise VocabularyMismatch(
                f"The edge model and the cloud model {self.name!r} have different vocabularies; "
                "choose two models of one family."
            )
        return "both vocabularies hash alike"

    def close(self) -> None:
        self._thread.shutdown()
        self.model.close()


class LocalSession:
    """Implements `CloudSession`; the KV cache keeps what a rewind leaves."""

    pushes = False

    def __init__(
        self,
        session: EdgeSession,
        eos_ids: frozenset[int],
        thread: ThreadPoolExecutor,
        ids: Sequence[int],
    ) -> None:
        self._session = session
        self._eos_ids = eos_ids
        self._thread = thread
        self._prefix = Prefix(ids)
        self._closing = threading.Event()

    def ask(
        self, position: int, new_ids: Sequence[int], n: int, sampling: Sampling, deadline: float
    ) -> Future[Verdict]:
        ids = self._prefix.put(position, new_ids)
        return self._thread.submit(self._answer, ids, n, sampling, time.monotonic() + deadline)

    def warm(self, position: int, new_ids: Sequence[int]) -> None:
        ids = self._prefix.put(position, new_ids)
        self._thread.submit(self._prefill, ids).add_done_callback(_log_failure)

    def close(self) -> None:
        # The session belongs to the thread, and a consult may still be running there.
        self._closing.set()
        self._thread.submit(self._session.close).add_done_callback(_log_failure)

    def _prefill(self, ids: list[int]) -> None:
        if not self._closing.is_set():
            self._session.open(ids)
            self._session.step()

    def _answer(self, ids: list[int], n: int, sampling: Sampling, end: float) -> Verdict:
        started = time.monotonic()
        try:
            return self._write(ids, n, sampling, started, end)
        except CloudError:
            raise
        except ContextOverflow as error:
            raise CloudRejected(f"The cloud model declined: {error}") from error
        except EdgewiseError as error:
            raise CloudError(f"The cloud model failed: {error}") from error

    def _write(
        self, ids: list[int], n: int, sampling: Sampling, started: float, end: float
    ) -> Verdict:
        cached = self._session.open(ids)
        written: list[int] = []
        logprobs: list[float] = []
        top: list[tuple[Candidate, ...]] = []
        for _ in range(n):
            if self._closing.is_set() or time.monotonic() > end:
                raise CloudTimeout("The cloud model did not answer before the deadline.")
            step = self._session.step()
            token = sampling.choose(step)
            written.append(token)
            logprobs.append(step.logprob(token))
            top.append(step.candidates(TOP))
            if token in self._eos_ids:
                break
            self._session.extend([token])
        return Verdict(
            ids=tuple(written),
            logprobs=tuple(logprobs),
            top=tuple(top),
            stopped=written[-1] in self._eos_ids,
            cached=cached,
            computed=len(ids) - cached,
            engine_seconds=time.monotonic() - started,
        )


def _log_failure(done: Future[None]) -> None:
    """Nobody waits for these calls, so what goes wrong in them is told here."""
    if not done.cancelled() and (error := done.exception()):
        _log.warning("the cloud model's thread: %s", error)
