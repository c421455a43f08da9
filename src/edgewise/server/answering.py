"""Answers for many clients by one loaded pair: a queue, and a thread for each slot."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TypeVar

import msgspec

from edgewise.edge.scoring import Scored, scored
from edgewise.edge.vocabulary import longest_piece, overflow, require_short
from edgewise.events import Event, Finished, Pending, RolledBack, Timing, Usage
from edgewise.grammar.compiled import COMPILING, Grammar
from edgewise.grammar.response_format import ResponseFormat, grammar_of
from edgewise.loop.policy import Policy
from edgewise.pair import Pair
from edgewise.parts import cloud_address
from edgewise.prompts import Message, Prompt
from edgewise.sampling import Sampling
from edgewise.server.errors import come_back
from edgewise.server.local_messages import LocalMessages

PAIR = "edgewise"
"""The name of a server's only model."""

READERS = 2
"""Prompts that are rendered and tokenised at a time; a long one takes memory."""

QUEUE_SECONDS = 5
"""When to come back if the queue is full."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Admission:
    """`slots` answers at a time, first come first served; `queue` more may wait."""

    def __init__(self, slots: int, queue: int) -> None:
        self.slots, self.queue = slots, queue
        self.running = self.waiting = 0
        self.free = asyncio.Semaphore(slots)

    def enter(self) -> "Ticket":
        """A place in the queue. Raises `ApiError` 429 with `Retry-After` if it is full."""
        if self.running + self.waiting >= self.slots + self.queue:
            message = f"{self.running} answers are being written and {self.waiting} wait"
            raise come_back(
                f"{message}; try again in {QUEUE_SECONDS} s.", QUEUE_SECONDS, code="queue_full"
            )
        return Ticket(self)


class Ticket:
    """A place: waiting, then running, then over. Use it in the event loop's thread only."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.running = False
        admission.waiting += 1
        self._left = False

    async def turn(self) -> None:
        """Wait until the answer may be written."""
        await self._admission.free.acquire()
        self.running = True
        self._admission.waiting -= 1
        self._admission.running += 1

    def give_up(self) -> None:
        """Leave if nothing runs; else the work gives the place back at its end."""
        if not self.running:
            self.leave()

    def leave(self) -> None:
        """Give the place back; later calls do nothing."""
        if self._left:
            return
        self._left = True
        if self.running:
            self._admission.running -= 1
            self._admission.free.release()
        else:
            self._admission.waiting -= 1


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt before it is read, of `texts` to tokenise or of so many `ids`.

    `read` makes it, in any thread, and raises an `EdgewiseError`. The grammar of `format` is not
    compiled yet.
    """

    read: Callable[[], Prompt]
    texts: Sequence[str] = ()
    ids: int = 0
    format: ResponseFormat | None = None


class PromptScores(msgspec.Struct, frozen=True):
    """The logprobs of further ids of the prompt: events that come before the answer's."""

    scores: Sequence[Scored]


AnswerEvent = Event | PromptScores


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the pair.

    `messages` are the conversation's, with their marks. With
    `scored` the edge model scores the prompt first, with so many candidates of each id.
    """

    prompt: Unread
    messages: Sequence[Message]
    policy: Policy
    max_tokens: int | None
    sampling: Sampling
    stop: Sequence[str] = ()
    candidates: bool = False
    pending: bool = False
    scored: int | None = None


class Answering:
    """A loaded pair and its queue. Whoever opened the pair closes it."""

    def __init__(
        self,
        pair: Pair,
        *,
        slots: int,
        queue: int,
        local: LocalMessages | None = None,
        name: str = PAIR,
    ) -> None:
        """`slots` answers at a time, which the edge model must have sessions for; `queue` more may
        wait. Pairs that share a `local` memory know the same messages as local."""
        self.name, self.pair = name, pair
        self.edge, self.cloud = pair.edge, pair.cloud
        self.settings, self.starts = pair.settings, pair.starts
        self.local = local or LocalMessages()
        self.admission = Admission(slots, queue)
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
        """Whether this is the bundled pair with its own router."""
        own = self.settings
        parts = {own.edge, cloud_address(own), own.router or "bundled"}
        return parts == {"bundled"} and self.cloud is not None and self.cloud.boundaries is None

    def close(self) -> None:
        """Wait for the threads; the end of a request stops its answer."""
        for pool in (self._readers, self._tokenizers, self._compilers):
            pool.shutdown(cancel_futures=True)
        self._threads.shutdown()

    def enter(self, asked: DecodeRequest) -> Ticket:
        """A place for an answer. Raises `ContextOverflow`, or `ApiError` 429 for a full queue.

        Prompts that are too long by their length alone are refused here; `read` looks closer.
        """
        require_short(self.edge.tokenizer, asked.prompt.texts, self.edge.context)
        self._require_room(asked.prompt.ids)
        return self.admission.enter()

    async def read(self, unread: Unread) -> tuple[Prompt, Grammar | None]:
        """Render and tokenise the prompt, then compile the response format, in threads.

        Raises `ContextOverflow`, and what `Unread.read` and `grammar_of` raise.
        """

        def read() -> Prompt:
            prompt = unread.read()
            self._require_room(len(prompt.ids))
            return prompt

        prompt = await _in_thread(self._readers, read)
        if unread.format is None:
            return prompt, None
        compiling = partial(grammar_of, self.edge.tokenizer, unread.format)
        return prompt, await _in_thread(self._compilers, compiling)

    async def tokenizing(self, work: Callable[[], _T]) -> _T:
        """The result of `work`, in a thread, one at a time and beside all prompts."""
        return await _in_thread(self._tokenizers, work)

    def _require_room(self, tokens: int) -> None:
        if tokens >= self.edge.context:
            raise overflow(str(tokens), self.edge.context)

    async def events(
        self,
        asked: DecodeRequest,
        prompt: Prompt,
        grammar: Grammar | None,
        ticket: Ticket,
        *,
        seen: Callable[[AnswerEvent], AnswerEvent] = lambda event: event,
    ) -> AsyncGenerator[AnswerEvent]:
        """The answer's events once its turn has come, each as `seen` returns it.

        Closing this early stops the work; the ticket is given back when the work has ended. Raises
        an `EdgewiseError`.
        """
        await ticket.turn()
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[AnswerEvent | BaseException | None] = asyncio.Queue()
        stop = threading.Event()

        def put(item: AnswerEvent | BaseException | None) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        def write() -> None:
            try:
                with closing(self._answer(asked, prompt, grammar)) as source:
                    for item in source:
                        if stop.is_set():
                            break
                        put(item)
            except BaseException as error:
                put(error)
            finally:
                put(None)

        work = loop.run_in_executor(self._threads, write)
        work.add_done_callback(lambda _: ticket.leave())
        try:
            while (item := await items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Finished):
                    self._warn_if_alone(item.usage)
                if asked.pending or not isinstance(item, Pending | RolledBack):
                    yield seen(item)
        finally:
            stop.set()

    def _answer(
        self, asked: DecodeRequest, prompt: Prompt, grammar: Grammar | None
    ) -> Generator[AnswerEvent]:
        if asked.scored is not None:
            with closing(scored(self.edge, prompt.ids, top=asked.scored)) as batches:
                yield from map(PromptScores, batches)
        if asked.max_tokens == 0:
            usage = Usage(prompt_tokens=len(prompt.ids))
            yield Finished(text="", finish_reason="length", usage=usage, timing=Timing())
            return
        with self.pair.stream(
            prompt,
            policy=asked.policy,
            sampling=asked.sampling,
            grammar=grammar,
            candidates=asked.candidates,
            # Always, since an answer can be stopped at each of these events too.
            pending=True,
            max_tokens=asked.max_tokens,
            stop=asked.stop,
        ) as events:
            yield from events

    def _warn_if_alone(self, usage: Usage) -> None:
        """Say in the log that no consult of an answer succeeded: once, until one does."""
        if usage.alone and not self._alone:
            _log.warning(
                "%s: every consult of an answer failed, so the edge model wrote all of it",
                self.name,
            )
        if usage.cloud_calls:
            self._alone = usage.alone


async def _in_thread(pool: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
    """If this is cancelled before its turn, nothing is done."""
    return await asyncio.get_running_loop().run_in_executor(pool, work)
