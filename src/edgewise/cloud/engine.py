"""Cloud models behind a network address. Each has a thread with an event loop for its I/O."""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest, failed, with_end
from edgewise.completion import Completion, Outgoing
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import PROBE_SECONDS, Client, Engine
from edgewise.engines.detokenization import COMPARE_SECONDS, compare_all, detokenization_of
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.engines.vocabulary_check import VocabularyCheck
from edgewise.errors import CloudRejected, CloudTimeout, CloudUnavailable, EdgewiseError
from edgewise.prompts import Prompt
from edgewise.wire.protocol import request_id

# Seconds that the event loop still runs at the end, so that TLS connections close cleanly.
CLOSING_SECONDS = 0.02

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class IoThread:
    """A thread whose event loop runs coroutines with a deadline, for callers in other threads."""

    def __init__(self, name: str) -> None:
        """Start the thread. `name` is the cloud model's, for error messages."""
        self._name = name
        self._closed = False
        self._submitting = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cloud", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, _T], deadline: float) -> "Future[_T]":
        """Run `work` in the thread and return the future of its result.

        After `deadline` seconds the work is cancelled, and the future fails with `CloudTimeout`.
        Once the thread is closed, the future fails with `CloudUnavailable` at once.
        """
        # Under a lock, or work could be handed to a loop that has just been stopped.
        with self._submitting:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(self._bounded(work, deadline), self._loop)
        # A coroutine that never ran would be reported as forgotten.
        work.close()
        return failed(CloudUnavailable(f"The connection to {self._name!r} was closed."))

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel running work, run `last`, wait until the thread ends. Later calls do nothing."""
        with self._submitting:
            closed, self._closed = self._closed, True
        # Two threads may close it: only the first ends the loop.
        if closed:
            last.close()
            return
        asyncio.run_coroutine_threadsafe(self._end(last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _bounded(self, work: Coroutine[Any, Any, _T], deadline: float) -> _T:
        task = asyncio.current_task()
        assert task is not None
        # A bug in work that nobody waits for any more must still be seen.
        task.add_done_callback(_log_unexpected)
        try:
            async with asyncio.timeout(deadline):
                return await work
        except TimeoutError as error:
            raise CloudTimeout(f"{self._name!r} did not answer within {deadline:g} s.") from error
        except asyncio.CancelledError as error:
            if self._closed:
                raise CloudUnavailable(f"The connection to {self._name!r} was closed.") from error
            if task.cancelling():
                raise
            # Its owner did not give it up: something on the way did.
            raise CloudUnavailable(f"The call to {self._name!r} was interrupted.") from error

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        # All at once, whatever each of them says to its end.
        await asyncio.gather(*tasks, return_exceptions=True)
        await last
        await asyncio.sleep(CLOSING_SECONDS)


class Clients:
    """Makes the `Client` of each consult, which names consult and session to an engine.

    One object is for one session with a cloud model. Its clients have the same random session id;
    each has a request id of its own, made of the session id and a number, for the engine's log.
    """

    def __init__(self) -> None:
        self._session, self._asks = secrets.token_hex(12), 0

    def of(self, sent: Outgoing, end: float | None = None) -> Client:
        """Return a client for the next consult, and set its request id in `sent`.

        `sent` counts the consult's messages. A busy engine may be asked once more before `end`, the
        deadline by `time.monotonic()`; with None it is not.
        """
        self._asks += 1
        sent.request_id = request_id(self._session, self._asks)
        return Client(session=self._session, sent=sent, request_id=sent.request_id, end=end)


class RemoteCloud(CloudModel):
    """Base class of cloud models at a URL that take token ids: an engine, or a gateway."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._io = IoThread(name)
        self.submit = self._io.submit
        # Never empty: of these `with_end` takes the lowest.
        self._eos_ids = frozenset([0])
        self._size: int | None = None
        # Ids that stand for nothing to the edge model.
        self._nothing = frozenset[int]()

    def check_remotely(
        self, work: Coroutine[Any, Any, None], deadline: float, tokenizer: Tokenizer
    ) -> None:
        """Run `work`, a check that the cloud model has the ids of `tokenizer` (the edge model's).

        Blocks. Raises what `work` raises, and `CloudTimeout` after `deadline` seconds. After
        success `checked` uses this tokenizer's end tokens and ids.
        """
        # Reading a vocabulary would hold the I/O thread up.
        nothing = detokenization_of(tokenizer).nothing
        self.submit(work, deadline).result()
        self._eos_ids = tokenizer.eos_ids or self._eos_ids
        self._size, self._nothing = tokenizer.size, nothing

    def checked(self, completion: Completion, request: ConsultRequest) -> Completion:
        """Return `completion`, with an end token added if the engine left its own out.

        Raises `CloudProtocolError` if it is no valid answer to `request`, or has ids that are not
        in the edge model's vocabulary.
        """
        n, prompt = request.n, len(request.ids)
        completion = with_end(completion, n, self._eos_ids)
        completion.validate(asked=n, prompt=prompt, size=self._size, verify=request.verify)
        # To the engine some may stand for something: where ids were not all compared.
        completion.require_defined(self.name, lambda token: token not in self._nothing)
        return completion

    def close(self) -> None:
        self._io.close(self._hang_up())

    async def _hang_up(self) -> None:
        """Close the connections. Called in the I/O thread when no work is left."""


class EngineCloud(RemoteCloud):
    """A cloud model on an inference server that takes token ids, such as vLLM or llama-server.

    After `check_vocabulary` its check is repeated on reconnects; consults fail if ids changed.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.url)
        self.engine = self.id_engine = engine
        self.verifies, self.reads_once = engine.verifies, engine.reads_once
        self._check: VocabularyCheck | None = None

    def identity(self) -> str:
        return f"{self.name} {self.engine.dialect} {self.engine.described.model or ''}"

    def requests(self, n: int) -> tuple[int, int]:
        # An engine that verifies writes a token, too.
        return 1, max(1, n)

    def open(self, prompt: Prompt) -> "EngineSession":
        return EngineSession(self)

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        """Check that the engine has the ids of `tokenizer`, the edge model's.

        Compares the ids of fixed strings and, if the engine detokenizes, the text of all ids, or of
        as many as 20 s allow (`COMPARE_SECONDS`). Returns what was found, as a text. Raises
        `VocabularyMismatch` if ids differ, and a `CloudError` if the engine does not answer.
        """
        check = VocabularyCheck(self.engine, lambda: self._accept(tokenizer))
        self.check_remotely(check.run(), PROBE_SECONDS + COMPARE_SECONDS, tokenizer)
        self._check = check
        return self.vocabulary_check

    async def complete(self, request: ConsultRequest, client: Client) -> Completion:
        """Send a consult with all of its ids, of prompt and answer, and return its completion.

        `client` names the session and the consult to the engine. Raises a `CloudError`.
        """
        if not request.ids:
            raise CloudRejected("A consult needs at least one token id.")
        consult = self.engine.consult if self._check is None else self._check.complete
        asked = request.ids, request.n, request.sampling, client, request.verify
        return self.checked(await consult(*asked), request)

    async def _accept(self, tokenizer: Tokenizer) -> None:
        strings = self.engine.compare_strings(tokenizer)
        self.vocabulary_check = strings + await compare_all(self.engine, tokenizer)

    async def _hang_up(self) -> None:
        await self.engine.close()


class EngineSession(CloudSession):
    """The session of an `EngineCloud`: each consult sends all ids, from the prompt's first on."""

    def __init__(self, cloud: EngineCloud) -> None:
        self._cloud, self._clients = cloud, Clients()

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        client = self._clients.of(request.sent, time.monotonic() + request.deadline)
        return self._cloud.submit(self._cloud.complete(request, client), request.deadline)


class LlamaServer(EngineCloud):
    """A cloud model served by llama.cpp's llama-server at a URL.

    `key` is a bearer token; `model` names one of several. The certificate of `https` is verified.
    """

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        super().__init__(LlamaServerEngine(url, key=key, model=model))


def _log_unexpected(task: "asyncio.Task[Any]") -> None:
    """Log an error other than `EdgewiseError` of cancelled work, whose result nobody reads."""
    error = None if task.cancelled() else task.exception()
    if error is not None and task.cancelling() and not isinstance(error, EdgewiseError):
        _log.error("work that was given up failed", exc_info=error)
