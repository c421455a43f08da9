"""A cloud model in this process: a second, larger model file, with a thread for each session."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest, failed, log_failure
from edgewise.completion import LEAST, Completion, Verified
from edgewise.edge.base import EdgeModel, EdgeSession, Tokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.engines.base import TOP
from edgewise.errors import (
    CloudError,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    ContextOverflow,
    EdgewiseError,
    VocabularyMismatch,
)
from edgewise.events import Candidate
from edgewise.prompts import Prompt

# Most draft tokens verified in one forward pass: each needs the logits of a whole vocabulary.
PASS = 64

_T = TypeVar("_T")


class LocalCloud(CloudModel):
    """A cloud model in this process: `model`, a large model that was loaded as edge models are.

    Nothing leaves the machine. The edge model must have the same vocabulary, unless an `Adapter` is
    put around this model. On `close` running consults fail at their next token; `model` is closed.
    """

    def __init__(self, model: EdgeModel) -> None:
        self.name = model.name
        self.local = self.model = model
        # It does not prefetch: the model would be busy when a consult comes.
        self.here = self.verifies = True
        self.room = threading.Semaphore(model.abilities.slots)
        """Slots of the model that are free: each session with the model takes one."""
        self.sessions: set[LocalSession] = set()
        self._edge = model.tokenizer
        self.closed = False
        """Whether `close` was called: consults then fail, running ones at their next token."""

    def identity(self) -> str:
        return self.model.fingerprint()

    def open(self, prompt: Prompt) -> "LocalSession":
        session = LocalSession(self)
        self.sessions.add(session)
        return session

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        if fingerprint(tokenizer) != fingerprint(self.model.tokenizer):
            raise VocabularyMismatch(
                f"The edge model and the cloud model {self.name!r} have different vocabularies",
                hint="choose two models of one family",
            )
        self._edge = tokenizer
        self.vocabulary_check = "all ids and the ids of fixed strings hash alike"
        return self.vocabulary_check

    def defines(self, token: int) -> bool:
        """Whether `token` stands for anything in the vocabulary that was last checked."""
        edge = self._edge
        return token < edge.size and (token in edge.special or edge.piece(token) != b"")

    def close(self) -> None:
        self.closed = True
        # A copy: each leaves the set when its thread ends.
        sessions = tuple(self.sessions)
        for session in sessions:
            session.close()
        # One may wait for room that another gives back.
        for session in sessions:
            session.join()
        self.model.close()


class LocalSession(CloudSession):
    """The session of a `LocalCloud`, whose KV cache keeps what consecutive consults share.

    At the first consult the session's own thread opens an `EdgeSession` of the large model. It
    waits until one of the model's slots (for one open session each) is free.
    """

    def __init__(self, cloud: LocalCloud) -> None:
        self._cloud = cloud
        self._eos_ids = cloud.model.tokenizer.eos_ids
        self._session: EdgeSession | None = None
        self._closing = threading.Event()
        self._asked = Future[Completion]()  # what the thread works on
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cloud")

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        """Queue a consult for the thread; if cancelled, it ends before its next token or batch."""
        # The thread's own future cannot be cancelled any more once the thread works on it.
        asked, end = Future[Completion](), time.monotonic() + request.deadline
        done = self._submit(partial(self._answer, request, end, asked))
        done.add_done_callback(partial(_hand_over, asked))
        return asked

    def forget(self) -> None:
        """Empty the KV cache, once the consults sent before this call are done."""
        self._submit(self._drop).add_done_callback(log_failure)

    def close(self) -> None:
        """End the session and return at once; its thread frees the KV cache, then ends.

        Consults that wait fail with `CloudUnavailable`; so does a running one, unless it is at its
        last token or batch of ids.
        """
        if not self._closing.is_set():
            self._closing.set()
            self._submit(self._end).add_done_callback(log_failure)
            self._thread.shutdown(wait=False)

    def join(self) -> None:
        """Wait for the thread to end, after `close`."""
        self._thread.shutdown()

    def _submit(self, work: Callable[[], _T]) -> "Future[_T]":
        """Run `work` on the thread; after `close` the future fails with `CloudUnavailable`."""
        try:
            return self._thread.submit(work)
        except RuntimeError:
            if not self._closing.is_set():
                raise
            return failed(CloudUnavailable(f"The cloud model {self._cloud.name!r} was closed."))

    def _opened(self, end: float) -> EdgeSession:
        """Return the session with the model. Raises `CloudTimeout` if no slot is free by `end`."""
        if self._session is None:
            # The deadline may be infinite, which no lock takes for a timeout.
            left = min(end - time.monotonic(), threading.TIMEOUT_MAX)
            if not self._cloud.room.acquire(timeout=max(0.0, left)):
                self._require_time(-math.inf)
            try:
                self._session = self._cloud.model.session()
            except BaseException:
                # Else a session that cannot be opened would hold its slot for ever.
                self._cloud.room.release()
                raise
        return self._session

    def _drop(self) -> None:
        if self._session is not None and not self._closing.is_set():
            self._session.rewind(0)

    def _end(self) -> None:
        try:
            if self._session is not None:
                self._session.close()
                self._cloud.room.release()
        finally:
            self._cloud.sessions.discard(self)

    def _answer(
        self, request: ConsultRequest, end: float, asked: "Future[Completion]"
    ) -> Completion:
        started, self._asked = time.monotonic(), asked
        try:
            self._require_time(end)
            made = self._write(request, started, end)
            made.require_defined(self._cloud.name, self._cloud.defines)
            return made
        except CloudError:
            raise
        except ContextOverflow as error:
            raise CloudRejected(f"The cloud model declined: {error}") from error
        except EdgewiseError as error:
            raise CloudError(f"The cloud model failed: {error}") from error
        finally:
            if self._session is not None:
                # Passes of others need not wait for the next step here.
                self._session.rest()

    def _write(self, request: ConsultRequest, started: float, end: float) -> Completion:
        ids, size = request.ids, self._cloud.model.tokenizer.size
        if not ids or not all(0 <= token < size for token in ids):
            raise CloudRejected(f"A consult needs ids before it, from 0 to {size - 1}.")
        session = self._opened(end)
        if request.verify:
            return self._verify(request, session, started, end)
        cached = self._read(session, ids, end)
        written: list[int] = []
        logprobs: list[float] = []
        top: list[tuple[Candidate, ...]] = []
        for _ in range(request.n):
            self._require_time(end)
            step = session.step()
            token = request.sampling.choose(step)
            written.append(token)
            logprobs.append(step.logprob(token))
            top.append(tuple(c for c in step.candidates(TOP) if self._cloud.defines(c.id)))
            # A full context has no place for a token more.
            if token in self._eos_ids or session.position == self._cloud.model.context:
                break
            session.extend([token])
        return Completion(
            ids=tuple(written),
            logprobs=tuple(logprobs),
            top=tuple(top),
            stopped=written[-1] in self._eos_ids,
            cached=cached,
            computed=len(ids) - cached,
            prompt=len(ids),
            engine_seconds=time.monotonic() - started,
        )

    def _verify(
        self, request: ConsultRequest, session: EdgeSession, started: float, end: float
    ) -> Completion:
        """Verify the draft tokens, at most `PASS` of them in a forward pass."""
        ids, start = request.ids, len(request.ids) - request.verify
        if request.n or not start > 0:
            raise CloudRejected("A verification needs ids before its own, and writes none.")
        cached = self._read(session, ids[: start - 1], end)
        made: list[Verified] = []
        for at in range(start, len(ids), PASS):
            self._require_time(end)
            block = ids[at : at + PASS]
            # The logits for a draft token are those of the id before it.
            steps = session.steps(ids[at - 1 : at - 1 + len(block)])
            made += [
                Verified(
                    max(LEAST, step.logprob(token)),
                    request.sampling.choose(step),
                    step.logprob(step.proposed),
                )
                for step, token in zip(steps, block, strict=True)
            ]
        return Completion(
            ids=(),
            logprobs=(),
            cached=cached,
            computed=len(ids) - 1 - cached,
            prompt=len(ids),
            engine_seconds=time.monotonic() - started,
            verified=tuple(made),
        )

    def _read(self, session: EdgeSession, ids: Sequence[int], end: float) -> int:
        """Prefill `ids` until the time `end`; return how many the KV cache held already."""
        cached = session.open(ids)
        while session.prefill():
            self._require_time(end)
        return cached

    def _require_time(self, end: float) -> None:
        if self._closing.is_set() or self._cloud.closed or self._asked.cancelled():
            # Not a timeout: that would lengthen the deadlines of every other answer.
            raise CloudUnavailable("The cloud model was closed before it replied.")
        if time.monotonic() > end:
            raise CloudTimeout("The cloud model did not answer before the deadline.")


def _hand_over(asked: "Future[Completion]", done: "Future[Completion]") -> None:
    """Give `asked` the outcome of `done`, unless it was cancelled."""
    if asked.set_running_or_notify_cancel():
        if (error := done.exception()) is not None:
            asked.set_exception(error)
        else:
            asked.set_result(done.result())
