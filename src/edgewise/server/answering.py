"""Answers for many clients by one `Pair` (edge and cloud model): a queue, and a thread per slot."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import msgspec

from edgewise.edge.scoring import Scored, scored
from edgewise.edge.vocabulary import longest_piece, overflow
from edgewise.events import Event, Finished, Pending, RolledBack, Timing, Usage
from edgewise.grammar.compiled import COMPILING, Grammar
from edgewise.grammar.response_format import ResponseFormat, grammar_of
from edgewise.opening import cloud_address
from edgewise.pair import Pair
from edgewise.prompts import Message, Prompt
from edgewise.server.errors import come_back
from edgewise.server.local_messages import LocalMessages

PAIR = "edgewise"
"""The model id of the pair; other ids, such as `edgewise@0.05`, begin with it."""

# A long prompt takes memory while it is rendered and tokenised.
READERS = 2
"""How many prompts are rendered and tokenised at a time."""

QUEUE_SECONDS = 5
"""`Retry-After` of a refusal because the queue is full, in seconds."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class AnswerQueue:
    """A first-in, first-out queue: `slots` answers run at a time, `queue` requests may wait."""

    def __init__(self, slots: int, queue: int) -> None:
        self.slots, self.queue = slots, queue
        self.running = self.waiting = 0
        self.free = asyncio.Semaphore(slots)

    def enter(self) -> "QueuePlace":
        """Return a new place; the caller must `leave` it. Raises `ApiError` 429 if none is free."""
        if self.running + self.waiting >= self.slots + self.queue:
            message = f"{self.running} answers are being written and {self.waiting} wait"
            raise come_back(
                f"{message}; try again in {QUEUE_SECONDS} s.", QUEUE_SECONDS, code="queue_full"
            )
        return QueuePlace(self)


class QueuePlace:
    """A request's place in an `AnswerQueue`: the request waits until `acquire` returns, then runs.

    The future `over` is done when the place is given up. For the event loop's thread only.
    """

    def __init__(self, queue: AnswerQueue) -> None:
        self._queue, self._running = queue, False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.waiting += 1

    async def acquire(self) -> None:
        """Wait, for as long as it takes, until a slot is free, and take it; `release` frees it."""
        await self._queue.free.acquire()
        self._running = True
        self._queue.waiting -= 1
        self._queue.running += 1

    def leave(self) -> None:
        """Give the place up if no slot was acquired; else do nothing, as `release` gives it up."""
        if not self._running:
            self._queue.waiting -= 1
            self.over.set_result(None)

    def release(self) -> None:
        """Free the slot that `acquire` took, once. `Answering.events` calls `acquire` and this."""
        self._queue.running -= 1
        self._queue.free.release()
        self.over.set_result(None)


class PromptScores(msgspec.Struct, frozen=True):
    """An event before the answer's own: how likely the edge model finds the prompt's next few ids.

    `scores` has an entry for each id: its logprob (nats; None for the prompt's first id), and the
    likeliest ids there.
    """

    scores: Sequence[Scored]


AnswerEvent = Event | PromptScores


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one answer, as the server makes it from a client's HTTP request.

    `read()` returns the prompt; it may run in any thread, and raise `ApiError` or `EdgewiseError`.
    `messages` is the conversation; `local` is set in messages that only trusted clouds may see.
    `format` is the response format (None: plain text). `options` are keyword arguments of
    `Pair.stream`, among them `max_tokens`. With `pending` the events include draft tokens and their
    rollbacks. With `scored` (not None) the prompt's logprobs come first, with that many of the
    likeliest ids at each position.
    """

    read: Callable[[], Prompt]
    messages: Sequence[Message]
    format: ResponseFormat | None = None
    options: Mapping[str, Any]
    pending: bool = False
    scored: int | None = None


class Answering:
    """Runs the answers of a `Pair` (edge and cloud model) in threads. Never closes the pair.

    Up to `slots` answers run, and `queue` more wait. The edge needs a session for each slot.
    """

    def __init__(self, pair: Pair, *, slots: int, queue: int) -> None:
        self.pair = pair
        self.edge, self.cloud = pair.edge, pair.cloud
        self.settings, self.starts = pair.settings, pair.starts
        self.local = LocalMessages()
        self.queue = AnswerQueue(slots, queue)
        self._alone = False
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="answer")
        # Pools of their own, so that no long prompt, format or text to tokenise makes answers wait.
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="prompt")
        self._tokenizers = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._compilers = ThreadPoolExecutor(COMPILING, thread_name_prefix="format")
        # Found once for all requests, before any of them waits for it.
        longest_piece(self.edge.tokenizer)

    @property
    def bundled(self) -> bool:
        """Whether edge model, cloud model and router are all those that come with Edgewise."""
        own = self.settings
        parts = {own.edge, cloud_address(own), own.router or "bundled"}
        return parts == {"bundled"} and self.cloud is not None and self.cloud.boundaries is None

    def close(self) -> None:
        """Cancel tokenising and compiling not yet begun; block until running answers have ended."""
        for pool in (self._readers, self._tokenizers, self._compilers):
            # Nobody waits for these any more; running answers still have clients.
            pool.shutdown(cancel_futures=True)
        self._threads.shutdown()

    async def read(self, read: Callable[[], Prompt]) -> Prompt:
        """Run `read`, which renders and tokenises a prompt, in a thread; return the prompt.

        Raises `ContextOverflow` if the prompt fills the edge's context, and whatever `read` raises.
        """
        prompt = await _in_thread(self._readers, read)
        if len(prompt.ids) >= self.edge.context:
            raise overflow(str(len(prompt.ids)), self.edge.context)
        return prompt

    async def grammar(self, format: ResponseFormat | None) -> Grammar | None:
        """Compile `format` in a thread; return None for None. Raises `UsageError` if that fails."""
        if format is None:
            return None
        return await _in_thread(self._compilers, partial(grammar_of, self.edge.tokenizer, format))

    async def tokenizing(self, work: Callable[[], _T]) -> _T:
        """Run `work`, which tokenises a text, in the one thread for that; return its result."""
        return await _in_thread(self._tokenizers, work)

    async def events(
        self,
        asked: DecodeRequest,
        prompt: Prompt,
        grammar: Grammar | None,
        place: QueuePlace,
        *,
        seen: Callable[[AnswerEvent], AnswerEvent] = lambda event: event,
    ) -> AsyncGenerator[AnswerEvent]:
        """Yield `seen(event)` for each event of the answer to `asked`.

        `prompt` is what `asked.read` returned. `grammar` is what the answer must follow (None: any
        text). Writing begins when `place` has a slot, and the slot is freed when the answer's
        thread has ended. Close this generator early to stop the answer. Raises an `EdgewiseError`
        if the answer fails, and whatever `seen` raises.
        """
        await place.acquire()
        loop = asyncio.get_running_loop()
        # Unbounded, as an answer has its own bound: a slow reader must not hold a slot.
        items: asyncio.Queue[AnswerEvent | None] = asyncio.Queue()
        stop = threading.Event()

        def write() -> None:
            with closing(self._answer(asked, prompt, grammar)) as source:
                for item in source:
                    # A thread cannot be cancelled: it looks whether anybody still reads.
                    if stop.is_set():
                        break
                    if not asked.pending and isinstance(item, Pending | RolledBack):
                        continue
                    # Asyncio's queues are not for threads.
                    loop.call_soon_threadsafe(items.put_nowait, item)

        def ended(work: "asyncio.Future[None]") -> None:
            # Else asyncio reports an error that nobody waits for any more.
            work.exception()
            place.release()
            items.put_nowait(None)

        work = loop.run_in_executor(self._threads, write)
        work.add_done_callback(ended)
        try:
            while (item := await items.get()) is not None:
                if isinstance(item, Finished):
                    self._warn_if_alone(item.usage)
                yield seen(item)
            # Raises what ended the answer in its thread.
            work.result()
        finally:
            stop.set()

    def _answer(
        self, asked: DecodeRequest, prompt: Prompt, grammar: Grammar | None
    ) -> Generator[AnswerEvent]:
        if asked.scored is not None:
            with closing(scored(self.edge, prompt.ids, top=asked.scored)) as batches:
                yield from map(PromptScores, batches)
        if asked.options["max_tokens"] == 0:
            usage = Usage(prompt_tokens=len(prompt.ids))
            yield Finished(text="", finish_reason="length", usage=usage, timing=Timing())
            return
        # Always pending events, since an answer can be stopped at each of these, too.
        with self.pair.stream(prompt, grammar=grammar, pending=True, **asked.options) as events:
            yield from events

    def _warn_if_alone(self, usage: Usage) -> None:
        """Warn if consults failed and none was used; warn again only after one was used."""
        # Else each answer would say so for as long as the cloud is away.
        if usage.alone and not self._alone:
            _log.warning("no consult of an answer could be used: the edge model wrote all of it")
        if usage.cloud_calls:
            self._alone = usage.alone


async def _in_thread(pool: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
    """Run `work` in a thread of the pool; if cancelled before a thread is free, never run it."""
    return await asyncio.get_running_loop().run_in_executor(pool, work)
