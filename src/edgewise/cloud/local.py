"""The large model in this process: a second GGUF on a thread of its own."""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Tokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import (
    CloudError,
    CloudRejected,
    CloudTimeout,
    ContextOverflow,
    EdgewiseError,
    VocabularyMismatch,
)
from edgewise.events import Candidate
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.verdict import Sent, Verdict

TOP = 5
"""Candidates returned for every token."""

_KEPT = Needs.ENTROPY | Needs.TOP | Needs.LOGITS


_log = logging.getLogger(__name__)


class LocalCloud(CloudModel):
    """Implements `CloudModel` over any `EdgeModel`. No socket is opened."""

    def __init__(self, model: EdgeModel) -> None:
        self.name = model.name
        self.model = model
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cloud")

    @property
    def local(self) -> EdgeModel:
        return self.model

    def identity(self) -> str:
        return self.model.fingerprint()

    def open(self, prompt: Prompt) -> "LocalSession":
        return LocalSession(self.model, self._thread)

    def check(self, tokenizer: Tokenizer) -> str:
        if fingerprint(tokenizer) != fingerprint(self.model.tokenizer):
            raise VocabularyMismatch(
                f"The edge model and the cloud model {self.name!r} have different vocabularies; "
                "choose two models of one family."
            )
        return "both vocabularies hash alike"

    def close(self) -> None:
        self._thread.shutdown()
        self.model.close()


class LocalSession:
    """Implements `CloudSession`; the KV cache keeps what a rewind leaves.

    The edge session behind it belongs to the thread, and is there from the first consult on.
    """

    def __init__(self, model: EdgeModel, thread: ThreadPoolExecutor) -> None:
        self._model = model
        self._eos_ids = model.tokenizer.eos_ids
        self._thread = thread
        self._session: EdgeSession | None = None
        self._closing = threading.Event()

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Verdict]:
        end = time.monotonic() + deadline
        return self._thread.submit(self._answer, list(ids), n, sampling, end)

    def push(self, ids: Sequence[int]) -> int:
        # The one thread would be busy when a consult comes.
        return 0

    def prefill(self, ids: Sequence[int]) -> None:
        """Compute `ids` in the background, so that a consult after them finds them in the cache."""
        self._thread.submit(self._prefill, list(ids)).add_done_callback(_log_failure)

    def close(self) -> None:
        self._closing.set()
        self._thread.submit(self._end).add_done_callback(_log_failure)

    def _opened(self) -> EdgeSession:
        if self._session is None:
            self._session = self._model.session(_KEPT, top=TOP)
        return self._session

    def _end(self) -> None:
        if self._session is not None:
            self._session.close()

    def _prefill(self, ids: list[int]) -> None:
        if not self._closing.is_set():
            self._opened().open(ids)
            self._opened().step()

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
        session = self._opened()
        cached = session.open(ids)
        written: list[int] = []
        logprobs: list[float] = []
        top: list[tuple[Candidate, ...]] = []
        for _ in range(n):
            if self._closing.is_set() or time.monotonic() > end:
                raise CloudTimeout("The cloud model did not answer before the deadline.")
            step = session.step()
            token = sampling.choose(step)
            written.append(token)
            logprobs.append(step.logprob(token))
            top.append(step.candidates(TOP))
            if token in self._eos_ids:
                break
            session.extend([token])
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
