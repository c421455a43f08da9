"""Answers for many clients by one loaded pair: a thread for each slot, events back to asyncio."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.cloud.record.record import SentRecord
from edgewise.edge.base import EdgeModel
from edgewise.edge.scoring import Scored
from edgewise.edge.vocabulary import longest_piece, overflow, require_fitting, require_short
from edgewise.events import Event, Finished, Pending, Rewound, Timing, Usage
from edgewise.grammar.compiled import COMPILING, Grammar
from edgewise.grammar.form import AnswerForm, grammar_of
from edgewise.loop.account import Account
from edgewise.loop.billing import Billing
from edgewise.loop.breaker import Breaker
from edgewise.loop.decoder import Decoder
from edgewise.loop.latency import Latency
from edgewise.loop.policy import Policy
from edgewise.parts import cloud_address
from edgewise.prompts import Message, Prompt
from edgewise.routers.base import Router
from edgewise.routers.card import RouterCard
from edgewise.sampling import Sampling
from edgewise.server.admission import Admission, Ticket
from edgewise.server.errors import ApiError
from edgewise.server.local_messages import LocalMessages
from edgewise.server.metrics import Metrics
from edgewise.server.unplug import RunningAnswers, UnpluggedCloud
from edgewise.settings import Settings

PAIR = "edgewise"
"""What a server's one model is called."""

READERS = 2
"""Prompts that are rendered and tokenised at a time; a long one takes memory."""

FORM_SECONDS = 10
"""When to come back where too many forms are compiled: by then one was, or was given up."""

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

Scorer = Callable[[Sequence[int]], Generator[Sequence[Scored], None, None]]
"""Says of ids how likely they are, a batch at a time."""


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it came: `texts` that are still to be tokenised, or so many `ids`.

    `more` texts there are as well, which take a while to find. `read` makes the prompt of it. Both
    may be called in any thread and raise an `EdgewiseError`. `form` is that of the answer, whose
    grammar is still to be compiled.
    """

    read: Callable[[], Prompt]
    texts: Sequence[str] = ()
    more: Callable[[], Sequence[str]] = tuple
    ids: int = 0
    form: AnswerForm | None = None


class Ready(NamedTuple):
    """A prompt, and the grammar that holds its answer to a form."""

    prompt: Prompt
    grammar: Grammar | None = None


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the pair.

    `messages` are the conversation's, with their marks; `limited` holds the cloud to what the
    request's key may ask of it. Once `cut` is set the answer goes on without the cloud.
    """

    prompt: Unread
    messages: Sequence[Message]
    policy: Policy
    max_tokens: int | None
    sampling: Sampling
    stop: Sequence[str] = ()
    candidates: bool = False
    pending: bool = False
    cut: threading.Event = msgspec.field(default_factory=threading.Event)
    limited: Callable[[CloudModel], CloudModel] = lambda cloud: cloud


def _nothing(prompt: Prompt) -> Finished:
    """An answer without any token."""
    usage = Usage(
        prompt_tokens=len(prompt.ids),
        edge_tokens=0,
        cloud_tokens=0,
        wasted_tokens=0,
        changing_tokens=0,
        cloud_share=0.0,
        cloud_calls=0,
        failed_calls=0,
        cloud_prompt_cached=0,
        cloud_prompt_computed=0,
    )
    timing = Timing(ttft=0.0, total=0.0, wait=0.0)
    return Finished(text="", finish_reason="length", usage=usage, timing=timing)


class Answering:
    """The loaded parts, and who may use them when. Closed by whoever made the parts."""

    def __init__(
        self,
        *,
        edge: EdgeModel,
        router: Router,
        card: RouterCard | None,
        settings: Settings,
        cloud: CloudModel | None,
        slots: int,
        queue: int,
        record: SentRecord | None = None,
        billing: Billing | None = None,
        local: LocalMessages | None = None,
        name: str = PAIR,
    ) -> None:
        """`slots` answers at a time, which `edge` must have sessions for; `queue` more may wait.

        What they send is told to `record`, what they cost to `billing`. Pairs that a conversation
        may go on with know from one `local` what of it stays here.
        """
        self.name = name
        self.edge, self.router, self.card = edge, router, card
        self.settings, self.cloud = settings, cloud
        self.breaker, self.latency = Breaker(), Latency()
        self.record = record or SentRecord()
        self.billing = billing
        self.local = local or LocalMessages()
        self.running = RunningAnswers()
        self.metrics = Metrics(billing)
        self.admission = Admission(slots, queue)
        self._accounts: dict[float, Account] = {}
        self._alone = False
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="answer")
        # Of their own, so that neither a long prompt nor a long answer keeps the other waiting.
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="prompt")
        self._tokenizers = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        # And a form is its client's: one that takes long keeps no prompt waiting, and those that
        # wait for each other leave half of the places to answers without.
        self._compilers = ThreadPoolExecutor(COMPILING, thread_name_prefix="form")
        self._forms, self._most_forms = 0, max(1, (slots + queue) // 2)
        # Looked up once for all requests, and not while one waits.
        longest_piece(edge.tokenizer)

    @property
    def bundled(self) -> bool:
        """Whether it is the bundled pair that answers, by its own router and without a bridge."""
        own = self.settings
        parts = {own.edge, cloud_address(own), own.router or "bundled"}
        return parts == {"bundled"} and self.cloud is not None and self.cloud.seams is None

    def close(self) -> None:
        """Wait for the threads; answers under way are stopped by the end of their requests."""
        self._readers.shutdown(cancel_futures=True)
        self._tokenizers.shutdown(cancel_futures=True)
        self._compilers.shutdown(cancel_futures=True)
        self._threads.shutdown()

    def enter(self, asked: DecodeRequest) -> Ticket:
        """A place for an answer. Raises `ContextOverflow`, or `ApiError` 429 for a full queue.

        What cannot fit by its length alone is refused first; `read` looks closer.
        """
        require_short(self.edge.tokenizer, asked.prompt.texts, self.edge.context)
        self._require_room(asked.prompt.ids)
        return self.admission.enter()

    async def read(self, unread: Unread) -> Ready:
        """The prompt, rendered and tokenised in a thread, and its answer's form, compiled in
        another. Raises `ContextOverflow`, what `Unread.read` and `grammar_of` do, or `ApiError` 429
        for too many forms."""
        prompt = await self.reading(lambda: self._read(unread))
        return Ready(prompt, await self._grammar(unread.form) if unread.form else None)

    async def reading(self, work: Callable[[], _T]) -> _T:
        """What `work` makes of text, in a thread; where this is cancelled before its turn there,
        nothing is done."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def tokenizing(self, work: Callable[[], _T]) -> _T:
        """The same for texts that nobody waits for an answer to: one at a time, beside prompts."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizers, work)

    def _read(self, unread: Unread) -> Prompt:
        texts = [*unread.texts, *unread.more()]
        require_fitting(self.edge.tokenizer, texts, self.edge.context)
        prompt = unread.read()
        self._require_room(len(prompt.ids))
        return prompt

    async def _grammar(self, form: AnswerForm) -> Grammar:
        if self._forms >= self._most_forms:
            raise ApiError(
                429,
                f"The forms of {self._forms} answers are being compiled; try again in "
                f"{FORM_SECONDS} s, or ask for an answer without response_format and tools.",
                kind="rate_limit_error",
                code="queue_full",
                headers={"Retry-After": str(FORM_SECONDS)},
            )
        self._forms += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._compilers, grammar_of, self.edge.tokenizer, form
            )
        finally:
            self._forms -= 1

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
            yield _nothing(ready.prompt)
            return
        await ticket.turn()
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()
        stop = threading.Event()
        work = loop.run_in_executor(self._threads, self._write, asked, ready, loop, told, stop)
        work.add_done_callback(lambda _: ticket.leave())
        try:
            while (event := await told.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                self.metrics.count(event)
                if isinstance(event, Finished):
                    self._warn_if_alone(event.usage)
                if asked.pending or not isinstance(event, Pending | Rewound):
                    yield event
        finally:
            stop.set()

    def _warn_if_alone(self, usage: Usage) -> None:
        """Say in the log that no consult of an answer succeeded: once, until one does."""
        if usage.alone and not self._alone:
            _log.warning(
                "%s: every consult of an answer failed, so the edge model wrote all of it",
                self.name,
            )
        if usage.cloud_calls:
            self._alone = usage.alone

    async def scored(self, scorer: Scorer, prompt: Prompt, ticket: Ticket) -> list[Scored]:
        """What `scorer` says of the prompt's ids, once its turn has come.

        The ticket is kept, for the answer; where this fails or is cancelled, it is given back when
        the work has ended. Raises an `EdgewiseError`.
        """
        stop = threading.Event()

        def work() -> list[Scored]:
            found: list[Scored] = []
            with closing(scorer(prompt.ids)) as batches:
                for batch in batches:
                    found += batch
                    if stop.is_set():
                        break
            return found

        await ticket.turn()
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(working)
        except BaseException:
            stop.set()
            working.add_done_callback(lambda _: ticket.leave())
            raise

    def _write(
        self,
        asked: DecodeRequest,
        ready: Ready,
        loop: asyncio.AbstractEventLoop,
        told: "asyncio.Queue[Event | BaseException | None]",
        stop: threading.Event,
    ) -> None:
        """In a thread of its own, which owns the edge session."""

        def tell(event: Event | BaseException | None) -> None:
            loop.call_soon_threadsafe(told.put_nowait, event)

        decoder = self._decoder(asked)
        account = self._account(asked.policy.cloud_share)
        taken = left = account.take()
        try:
            answer = decoder.stream(
                ready.prompt,
                max_tokens=asked.max_tokens,
                sampling=asked.sampling,
                stop=asked.stop,
                budget=taken,
                candidates=asked.candidates,
                # Asked for always: it is where a run-ahead can be stopped.
                pending=True,
                grammar=ready.grammar,
            )
            try:
                with answer as events:
                    for event in events:
                        if stop.is_set():
                            break
                        tell(event)
            finally:
                # That the cloud was unplugged says nothing of the threshold that others need.
                cut = asked.cut.is_set()
                left = replace(answer.budget, shift=taken.shift) if cut else answer.budget
        except BaseException as error:
            tell(error)
        finally:
            account.settle(taken, left)
            tell(None)

    def _decoder(self, asked: DecodeRequest) -> Decoder:
        """With the cloud as this answer reaches it."""
        cloud = self.cloud
        if cloud is not None:
            cloud = UnpluggedCloud(asked.limited(cloud), asked.cut)
        return Decoder(
            self.edge,
            router=self.router,
            policy=asked.policy,
            cloud=cloud,
            breaker=self.breaker,
            latency=self.latency,
            record=self.record,
            billing=self.billing,
        )

    def _account(self, share: float | None) -> Account:
        """The budget of a cloud share over the server's life; shares of a thousandth apart or less
        have one together, so that there can never be too many. Without a share nothing is kept."""
        return Account() if share is None else self._accounts.setdefault(round(share, 3), Account())
