"""From events to replies: whole or as server-sent events; work ends when the client leaves."""

import asyncio
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from msgspec.structs import replace
from sse_starlette.sse import EventSourceResponse
from starlette.types import Receive, Scope, Send

from edgewise.edge.base import Tokenizer
from edgewise.errors import EdgewiseError
from edgewise.events import Candidate, Event, Finished, Pending, RolledBack, Token, Usage
from edgewise.grammar.calls import CallBegun, CallReader, Part, Said
from edgewise.prompts import Prompt
from edgewise.server.answering import Answering, DecodeRequest, Ticket
from edgewise.server.callers import Caller, caller_of
from edgewise.server.errors import ApiError, refusal_of
from edgewise.server.requests import AnswerRequest, ignored, ignored_header, shown

PING_SECONDS = 10

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Writer(ABC):
    """The reply to one request, in the form of its API."""

    end: ClassVar[str | None] = "[DONE]"
    """A stream's last data, if there is one."""

    named: ClassVar[bool] = False
    """Whether an event of a stream has its `type` as its name."""

    def __init__(
        self,
        request: AnswerRequest,
        tokenizer: Tokenizer,
        *,
        calls: CallReader | None = None,
        local: bool = False,
    ) -> None:
        """`calls` reads the calls in an answer that may have some. A `local` answer stays here."""
        self.request, self.calls, self.local = request, calls, local
        self.ignored = list(ignored(request))
        self.prompt_ids: Sequence[int] = ()
        self._tokenizer = tokenizer

    async def read(self, prompt: Prompt, ticket: Ticket) -> None:
        """Called with the prompt before any event."""
        self.prompt_ids = prompt.ids

    @abstractmethod
    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """The reply in one piece."""

    @abstractmethod
    def begun(self) -> Iterator[dict[str, Any]]:
        """The first chunks of a stream."""

    @abstractmethod
    def more(self, event: Event) -> Iterator[dict[str, Any]]:
        """The chunks of a stream for an event."""

    def failed(self, error: ApiError) -> dict[str, Any]:
        """The chunk for an error after the answer has begun."""
        return error.body()

    def parts(self, event: Token | Finished) -> list[Part]:
        """The text and calls that an event adds."""
        if self.calls is None:
            return [Said(event.text)] if event.text else []
        parts = self.calls.feed(event.text)
        return parts + (self.calls.finish() if isinstance(event, Finished) else [])

    def finish_reason(self, end: Finished) -> str:
        """Why the answer ended, in OpenAI's words."""
        called = self.calls is not None and self.calls.called
        return "tool_calls" if called and end.finish_reason == "stop" else end.finish_reason

    def own(self, event: Event) -> dict[str, Any] | None:
        """Edgewise's own fields for an event; None for none."""
        if isinstance(event, Pending):
            return {"pending": {"index": event.index, "text": event.text}}
        if isinstance(event, RolledBack):
            return {"rolled_back": {"index": event.index}}
        if self.request.edgewise.provenance and isinstance(event, Token):
            return {"token": self._provenance(event)}
        if self.request.edgewise.provenance and isinstance(event, Finished):
            return {"timing": msgspec.to_builtins(event.timing)}
        return None

    def own_prompt(self) -> dict[str, Any] | None:
        """Edgewise's own fields for the prompt, as `own`."""
        if not self.request.edgewise.provenance:
            return None
        return {"prompt_token_ids": list(self.prompt_ids)} if self.prompt_ids else {}

    def own_whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """Edgewise's own fields for a reply in one piece."""
        if (own := self.own_prompt()) is None:
            return {}
        tokens = [self._provenance(one) for one in events if isinstance(one, Token)]
        return {"edgewise": {**own, "tokens": tokens, **(self.own(end_of(events)) or {})}}

    def logprobs(self, tokens: Sequence[Token]) -> list[dict[str, Any]]:
        """Tokens with their writers' likeliest; one without a known logprob is left out."""
        most = self.request.candidates or 0
        return [
            {
                **self._candidate(token.id, token.logprob),
                "top_logprobs": self._candidates(candidates_of(token)[:most]),
            }
            for token in tokens
            if token.logprob is not None
        ]

    def text(self, token: int) -> str:
        """One token's text; parts of characters become U+FFFD."""
        return self._tokenizer.piece(token).decode("utf-8", "replace")

    def _candidate(self, token: int, logprob: float) -> dict[str, Any]:
        """Text, logprob in nats, bytes."""
        piece = list(self._tokenizer.piece(token))
        return {"token": self.text(token), "logprob": logprob, "bytes": piece}

    def _candidates(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        return [self._candidate(one.id, one.logprob) for one in candidates]

    def _provenance(self, token: Token) -> dict[str, Any]:
        """Who wrote a token, and why."""
        names = ("index", "id", "source", "reason", "score", "threshold", "seconds", "wait")
        return {
            **{name: getattr(token, name) for name in names},
            "text": self.text(token.id),
            "edge": self._candidates(token.edge),
            "cloud": self._candidates(token.cloud),
        }


def end_of(events: Sequence[Event]) -> Finished:
    """The end of a whole answer."""
    return next(event for event in reversed(events) if isinstance(event, Finished))


def candidates_of(token: Token) -> Sequence[Candidate]:
    """Those of the model that wrote it."""
    return token.cloud if token.source == "cloud" else token.edge


class UsageCounts:
    """Token counts of an answer, for the `usage` of each API; `own` is Edgewise's part."""

    def __init__(self, usage: Usage) -> None:
        self.own = msgspec.to_builtins(usage)
        self.prompt, self.cached = self.own.pop("prompt_tokens"), self.own.pop("cached_tokens")
        self.written = usage.edge_tokens + usage.cloud_tokens


class ChunkWriter(Writer):
    """Replies of `/chat/completions` and `/completions`, which differ in their choices only."""

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, request: AnswerRequest, tokenizer: Tokenizer, **options: Any) -> None:
        super().__init__(request, tokenizer, **options)
        asked = request.stream_options
        self._with_usage = asked is not None and asked.include_usage
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": request.model,
        }

    @abstractmethod
    def opening(self) -> dict[str, Any] | None:
        """A choice's fields before there is any text."""

    @abstractmethod
    def piece(self, part: Part | None = None, token: Token | None = None) -> dict[str, Any]:
        """A choice's fields for a part of the answer, with the logprobs of `token`."""

    @abstractmethod
    def body(self, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        """A choice's fields for a whole answer."""

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        end = end_of(events)
        tokens = [event for event in events if isinstance(event, Token)]
        body = self.body("".join(token.text for token in tokens) + end.text, tokens)
        return {
            **self._head,
            "object": self.kind,
            "choices": [{"index": 0, **body, **self._ended(end)}],
            "usage": _usage(end.usage),
            **self.own_whole(events),
        }

    def begun(self) -> Iterator[dict[str, Any]]:
        opening, own = self.opening(), self.own_prompt()
        if opening is not None or own is not None:
            yield self._chunk(opening or self.piece(), own)

    def more(self, event: Event) -> Iterator[dict[str, Any]]:
        own = self.own(event)
        if isinstance(event, Token | Finished):
            token = event if isinstance(event, Token) else None
            if event.text or own or token is None or self.request.candidates is not None:
                *first, last = self.parts(event) or [None]
                for part in first:
                    yield self._chunk(self.piece(part))
                ended = {} if isinstance(event, Token) else self._ended(event)
                yield self._chunk({**self.piece(last, token), **ended}, own)
        elif own is not None:
            yield self._chunk(self.piece(), own)
        if isinstance(event, Finished) and self._with_usage:
            yield {**self._chunk({}), "choices": [], "usage": _usage(event.usage)}

    def _ended(self, end: Finished) -> dict[str, Any]:
        return {"finish_reason": self.finish_reason(end), "stop_reason": end.stop}

    def _chunk(self, choice: dict[str, Any], own: dict[str, Any] | None = None) -> dict[str, Any]:
        made: dict[str, Any] = {**self._head, "object": self.chunk_kind}
        if self._with_usage:
            made["usage"] = None
        made["choices"] = [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]
        return made if own is None else {**made, "edgewise": own}


def _usage(usage: Usage) -> dict[str, Any]:
    counts = UsageCounts(usage)
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.written,
        "total_tokens": counts.prompt + counts.written,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "edgewise": counts.own,
    }


class EventWriter(Writer):
    """Replies as typed events, whose answers have parts: texts and calls."""

    end, named = None, True
    always_text: ClassVar[bool] = False
    """Whether an answer without tokens has a text all the same."""

    part: Literal["text", "call"] | None = None
    """What the last part is."""

    def __init__(self, request: AnswerRequest, tokenizer: Tokenizer, **options: Any) -> None:
        super().__init__(request, tokenizer, **options)
        self._waiting: list[dict[str, Any]] = []

    @abstractmethod
    def first(self) -> Iterator[dict[str, Any]]:
        """The events of the answer's beginning."""

    @abstractmethod
    def opened(self, call: CallBegun | None = None) -> Iterator[dict[str, Any]]:
        """The events of another part, a text or a `call`, after the end of the last one."""

    @abstractmethod
    def grown(self, more: str, logprobs: Sequence[Any]) -> dict[str, Any]:
        """The event of more of the last part."""

    @abstractmethod
    def ended(self, end: Finished) -> Iterator[dict[str, Any]]:
        """The events of the answer's end."""

    @abstractmethod
    def reply(self, end: Finished) -> dict[str, Any]:
        """The whole reply, once all events came."""

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        for event in events:
            list(self.more(event))
        return {**self.reply(end_of(events)), **self.own_whole(events)}

    def begun(self) -> Iterator[dict[str, Any]]:
        self._tell(self.own_prompt())
        yield from self.first()

    def more(self, event: Event) -> Iterator[dict[str, Any]]:
        self._tell(self.own(event))
        if isinstance(event, Token | Finished):
            tokens = [event] if isinstance(event, Token) else []
            logprobs = self.logprobs(tokens) if self.request.candidates is not None else []
            for part in self.parts(event) or ([Said("")] if logprobs else []):
                if isinstance(part, CallBegun):
                    yield from self._open(part)
                    continue
                if isinstance(part, Said) and self.part != "text":
                    yield from self._open()
                yield from self._grow(part.text, logprobs)
        never_opened = isinstance(event, Finished) and self.part is None
        if never_opened and (self._waiting or self.always_text):
            yield from self._open()
        if self.part is not None:
            yield from self._grow()
        if isinstance(event, Finished):
            yield from self.ended(event)

    def _tell(self, own: dict[str, Any] | None) -> None:
        """Provenance of tokens without text, such as a call's opening, waits for a place."""
        self._waiting += [] if own is None else [{"edgewise": own}]

    def _open(self, call: CallBegun | None = None) -> Iterator[dict[str, Any]]:
        yield from self.opened(call)
        self.part = "text" if call is None else "call"

    def _grow(self, more: str = "", logprobs: Sequence[Any] = ()) -> Iterator[dict[str, Any]]:
        waiting, self._waiting = self._waiting, []
        own = waiting.pop() if waiting and (more or logprobs) else {}
        for before in waiting:
            yield self.grown("", []) | before
        if more or logprobs:
            yield self.grown(more, logprobs) | own


class EventStream(EventSourceResponse):
    """A reply as server-sent events, with pings while there are none; closes `held` at the end."""

    def __init__(
        self,
        writer: Writer,
        events: AsyncGenerator[Event],
        held: AsyncExitStack,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_streamed(writer, events), ping=PING_SECONDS, sep="\n", headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Nothing was begun where the client was gone before.
        async with self._held:
            await super().__call__(scope, receive, send)


async def _streamed(writer: Writer, events: AsyncGenerator[Event]) -> AsyncIterator[dict[str, str]]:
    def framed(chunk: dict[str, Any]) -> dict[str, str]:
        name = {"event": chunk["type"]} if writer.named else {}
        return {**name, "data": msgspec.json.encode(chunk).decode()}

    try:
        async with aclosing(events):
            for chunk in writer.begun():
                yield framed(chunk)
            async for event in events:
                for chunk in writer.more(event):
                    yield framed(chunk)
    except Exception as error:
        if not isinstance(error, ApiError | EdgewiseError):
            _log.exception("an answer failed")
        yield framed(writer.failed(refusal_of(error)))
    if writer.end is not None:
        yield {"data": writer.end}


async def reply_with(
    writer: Writer, decoding: DecodeRequest, answering: Answering, request: Request
) -> Response:
    """Answer; stop the work when the client leaves.

    Raises what `Answering.enter`, `Answering.read` and `Caller.entered` do.
    """
    caller = caller_of(request)
    async with AsyncExitStack() as held:
        await held.enter_async_context(caller.entered(cloud=decoding.policy.asks))
        ticket = answering.enter(decoding)
        held.callback(ticket.give_up)
        ready = await unless_gone(request, answering.read(decoding.prompt))
        ready = ready._replace(prompt=caller.read(ready.prompt))
        await unless_gone(request, writer.read(ready.prompt, ticket))
        unheld = ready.grammar.unheld if ready.grammar else ()
        names = [*writer.ignored, *(f"tools.{shown(keyword)}" for keyword in unheld)]
        local = decoding.messages[-1].local
        if local:
            answering.local.answered(decoding.messages, owner=caller.name)
        count = partial(request.app.state.metrics.count, answering.name)
        limited = replace(decoding, limited=caller.limited)
        remember = partial(answering.local.writing, owner=caller.name) if local else None
        events = _seen(caller, count, remember, answering.events(limited, ready, ticket))
        held.push_async_callback(events.aclose)
        if writer.request.stream:
            return EventStream(writer, events, held.pop_all(), ignored_header(names))
        whole = writer.whole(await unless_gone(request, _collected(events)))
        return JSONResponse(whole, headers=ignored_header(names))
    # Types cannot tell that nothing above swallows exceptions.
    raise AssertionError


async def _seen(
    caller: Caller,
    count: Callable[[Event], None],
    remember: Callable[[str], None] | None,
    events: AsyncGenerator[Event],
) -> AsyncGenerator[Event]:
    text = ""
    async with aclosing(events):
        async for event in events:
            count(event)
            if remember is not None and isinstance(event, Token | Finished):
                # Up to each token: the client may leave at any of them.
                text += event.text
                remember(text)
            yield caller.seen(event)


async def _collected(events: AsyncGenerator[Event]) -> list[Event]:
    async with aclosing(events):
        return [event async for event in events]


async def queued(
    answering: Answering, request: Request, work: Callable[[], Coroutine[Any, Any, _T]]
) -> _T:
    """The result of `work`, from a place in the queue, so no more is read than can be answered.

    Raises `ApiError` as `Answering.enter`, `Caller.entered` and `unless_gone` do.
    """
    async with caller_of(request).entered(cloud=False):
        ticket = answering.admission.enter()
        try:
            return await unless_gone(request, work())
        finally:
            ticket.leave()


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`. Cancels it and raises `ApiError` 499 when the client leaves."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ApiError(499, "The client left.")
    finally:
        working.cancel()
        leaving.cancel()
