"""Answers for many clients by one loaded pair: a queue, and a thread for each slot."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing, closing
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from edgewise.cloud.base import CloudModel
from edgewise.edge.scoring import Scored
from edgewise.edge.vocabulary import longest_piece, overflow, require_fitting, require_short
from edgewise.events import Event, Finished, Pending, RolledBack, Timing, Usage
from edgewise.grammar.compiled import COMPILING, Grammar
from edgewise.grammar.response_format import ResponseFormat, grammar_of
from edgewise.loop.policy import Policy
from edgewise.pair import Pair
from edgewise.parts import cloud_address
from edgewise.prompts import Message, Prompt
from edgewise.sampling import Sampling
from edgewise.server.errors import ApiError
from edgewise.server.local_messages import LocalMessages

PAIR = "edgewise"
"""The name of a server's only model."""

READERS = 2
"""Prompts that are rendered and tokenised at a time; a long one takes memory."""

QUEUE_SECONDS = 5
"""When to come back if the queue is full."""

FORMAT_SECONDS = 10
"""When to come back if too many response formats are compiled: one is done or given up by then."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

Scorer = Callable[[Sequence[int]], Generator[Sequence[Scored], None, None]]
"""Tells how likely ids are, in batches."""


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
            raise _come_back(f"{message}; try again in {QUEUE_SECONDS} s.", QUEUE_SECONDS)
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
        if self.running:
            return
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
    """A prompt before it is read: `texts` to tokenise, or the number of its `ids`.

    `more` finds further texts, which takes a while; `read` makes the prompt. Both run in any
    thread and raise an `EdgewiseError`. The grammar of `form` is still to be compiled.
    """

    read: Callable[[], Prompt]
    texts: Sequence[str] = ()
    more: Callable[[], Sequence[str]] = tuple
    ids: int = 0
    form: ResponseFormat | None = None


class Ready(NamedTuple):
    """A prompt, and the grammar that constrains its answer."""

    prompt: Prompt
    grammar: Grammar | None = None


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the pair.

    `messages` are the conversation's, with their marks. `limited` holds the cloud to what the
    request's key may still ask of it.
    """

    prompt: Unread
    messages: Sequence[Message]
    policy: Policy
    max_tokens: int | None
    sampling: Sampling
    stop: Sequence[str] = ()
    candidates: bool = False
    pending: bool = False
    limited: Callable[[CloudModel], CloudModel] = lambda cloud: cloud


class Answering:
    """A loaded pair, and who may use it when. Whoever opened the pair closes it."""

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
        # At most half of the places wait for response formats.
        self._formats, self._most_formats = 0, max(1, (slots + queue) // 2)
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

    async def read(self, unread: Unread) -> Ready:
        """Render and tokenise the prompt, then compile the response format, in threads.

        Raises `ContextOverflow`, what `Unread.read` and `grammar_of` raise, or `ApiError` 429 for
        too many formats.
        """
        prompt = await self._in_thread(self._readers, lambda: self._read(unread))
        return Ready(prompt, await self._grammar(unread.form) if unread.form else None)

    async def tokenizing(self, work: Callable[[], _T]) -> _T:
        """The result of `work`, in a thread, one at a time and beside all prompts."""
        return await self._in_thread(self._tokenizers, work)

    async def _in_thread(self, pool: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
        """If this is cancelled before its turn, nothing is done."""
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def _read(self, unread: Unread) -> Prompt:
        texts = [*unread.texts, *unread.more()]
        require_fitting(self.edge.tokenizer, texts, self.edge.context)
        prompt = unread.read()
        self._require_room(len(prompt.ids))
        return prompt

    async def _grammar(self, form: ResponseFormat) -> Grammar:
        if self._formats >= self._most_formats:
            message = (
                f"{self._formats} response formats are being compiled; try again in "
                f"{FORMAT_SECONDS} s, or leave response_format and tools out."
            )
            raise _come_back(message, FORMAT_SECONDS)
        self._formats += 1
        try:
            compiled = lambda: grammar_of(self.edge.tokenizer, form)  # noqa: E731
            return await self._in_thread(self._compilers, compiled)
        finally:
            self._formats -= 1

    def _require_room(self, tokens: int) -> None:
        if tokens >= self.edge.context:
            raise overflow(str(tokens), self.edge.context)

    async def events(
        self, asked: DecodeRequest, ready: Ready, ticket: Ticket
    ) -> AsyncGenerator[Event]:
        """The answer's events once its turn has come. Closing it early stops the work.

        The ticket is given back when the work has ended. Raises an `EdgewiseError`.
        """
        if asked.max_tokens == 0:
            ticket.leave()
            usage = Usage(prompt_tokens=len(ready.prompt.ids))
            yield Finished(text="", finish_reason="length", usage=usage, timing=Timing())
            return
        stream = partial(
            self.pair.stream,
            ready.prompt,
            policy=asked.policy,
            around=asked.limited,
            sampling=asked.sampling,
            grammar=ready.grammar,
            candidates=asked.candidates,
            # Always, since an answer can be stopped at each of these events too.
            pending=True,
            max_tokens=asked.max_tokens,
            stop=asked.stop,
        )
        async with aclosing(self._written(stream, ticket)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    self._warn_if_alone(event.usage)
                if asked.pending or not isinstance(event, Pending | RolledBack):
                    yield event

    async def scored(self, scorer: Scorer, prompt: Prompt, ticket: Ticket) -> list[Scored]:
        """How likely the prompt's ids are, once its turn has come.

        The ticket is kept for the answer, unless this fails. Raises an `EdgewiseError`.
        """
        batches = self._written(lambda: closing(scorer(prompt.ids)), ticket, keep=True)
        async with aclosing(batches):
            return [one async for batch in batches for one in batch]

    async def _written(
        self,
        opened: Callable[[], AbstractContextManager[Iterable[_T]]],
        ticket: Ticket,
        *,
        keep: bool = False,
    ) -> AsyncGenerator[_T]:
        """What comes of `opened` in a slot's thread, once its turn has come.

        Closing this early stops the work. The ticket is given back when the work has ended; with
        `keep` only if it did not come to its end.
        """
        await ticket.turn()
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[_T | BaseException | None] = asyncio.Queue()
        stop = threading.Event()

        def tell(item: _T | BaseException | None) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        def write() -> None:
            try:
                with opened() as source:
                    for item in source:
                        if stop.is_set():
                            break
                        tell(item)
            except BaseException as error:
                tell(error)
            finally:
                tell(None)

        work = loop.run_in_executor(self._threads, write)
        if not keep:
            work.add_done_callback(lambda _: ticket.leave())
        ended = False
        try:
            while (item := await items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
            ended = True
        finally:
            stop.set()
            if keep and not ended:
                work.add_done_callback(lambda _: ticket.leave())

    def _warn_if_alone(self, usage: Usage) -> None:
        """Say in the log that no consult of an answer succeeded: once, until one does."""
        if usage.alone and not self._alone:
            _log.warning(
                "%s: every consult of an answer failed, so the edge model wrote all of it",
                self.name,
            )
        if usage.cloud_calls:
            self._alone = usage.alone


def _come_back(message: str, seconds: int) -> ApiError:
    return ApiError(
        429,
        message,
        kind="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": str(seconds)},
    )
