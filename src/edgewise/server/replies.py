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
from typing import Any, ClassVar, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from sse_starlette.sse import EventSourceResponse
from starlette.types import Receive, Scope, Send

from edgewise.edge.base import Tokenizer
from edgewise.errors import EdgewiseError
from edgewise.events import Candidate, Finished, Pending, RolledBack, Token, Usage
from edgewise.grammar.calls import CallBegun, CallReader, Part, Said
from edgewise.server.answering import AnswerEvent, Answering, DecodeRequest
from edgewise.server.callers import caller_of
from edgewise.server.errors import ApiError, refusal_of
from edgewise.server.requests import AnswerRequest, OpenAIRequest, ignored, ignored_header, shown

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
        self.tokenizer = tokenizer
        self.prompt_ids: Sequence[int] = ()
        """Set before anything is written."""

    @abstractmethod
    def begun(self) -> Iterator[dict[str, Any]]:
        """The first chunks of a stream."""

    @abstractmethod
    def more(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        """The chunks of a stream for an event."""

    @abstractmethod
    def reply(self, chunks: Sequence[dict[str, Any]], end: Finished) -> dict[str, Any]:
        """The reply in one piece, put together of the chunks of a stream."""

    def whole(self, events: Sequence[AnswerEvent]) -> dict[str, Any]:
        """The reply in one piece."""
        chunks = [*self.begun(), *(chunk for event in events for chunk in self.more(event))]
        end = next(event for event in reversed(events) if isinstance(event, Finished))
        return self.reply(chunks, end)

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

    request: OpenAIRequest

    def __init__(self, request: OpenAIRequest, tokenizer: Tokenizer, **options: Any) -> None:
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
    def body(self, pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A choice's fields for a whole answer, of those of its parts."""

    def reply(self, chunks: Sequence[dict[str, Any]], end: Finished) -> dict[str, Any]:
        body = self.body([chunk["choices"][0] for chunk in chunks if chunk["choices"]])
        whole: dict[str, Any] = {
            **self._head,
            "object": self.kind,
            "choices": [{"index": 0, **body, **self._ended(end)}],
            "usage": _usage(end.usage),
        }
        if self.request.edgewise.provenance:
            own = {"tokens": []}
            for fields in (chunk["edgewise"] for chunk in chunks if "edgewise" in chunk):
                own["tokens"] += [fields.pop("token")] if "token" in fields else []
                own |= fields
            whole["edgewise"] = own
        return whole

    def begun(self) -> Iterator[dict[str, Any]]:
        opening, own = self.opening(), None
        if self.request.edgewise.provenance:
            own = {"prompt_token_ids": list(self.prompt_ids)} if self.prompt_ids else {}
        if opening is not None or own is not None:
            yield self.chunk(opening or self.piece(), own)

    def more(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        own = self._own(event)
        if isinstance(event, Token | Finished):
            token = event if isinstance(event, Token) else None
            if event.text or own or token is None or self.request.candidates is not None:
                *first, last = self.parts(event) or [None]
                for part in first:
                    yield self.chunk(self.piece(part))
                ended = {} if isinstance(event, Token) else self._ended(event)
                yield self.chunk({**self.piece(last, token), **ended}, own)
        elif own is not None:
            yield self.chunk(self.piece(), own)
        if isinstance(event, Finished) and self._with_usage:
            yield {**self.chunk({}), "choices": [], "usage": _usage(event.usage)}

    def _ended(self, end: Finished) -> dict[str, Any]:
        return {"finish_reason": self.finish_reason(end), "stop_reason": end.stop}

    def chunk(self, choice: dict[str, Any], own: dict[str, Any] | None = None) -> dict[str, Any]:
        """A chunk of one choice, with Edgewise's own fields."""
        made: dict[str, Any] = {**self._head, "object": self.chunk_kind}
        if self._with_usage:
            made["usage"] = None
        made["choices"] = [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]
        return made if own is None else {**made, "edgewise": own}

    def _own(self, event: AnswerEvent) -> dict[str, Any] | None:
        """Edgewise's own fields for an event; None for none."""
        if isinstance(event, Pending):
            return {"pending": {"index": event.index, "text": event.text}}
        if isinstance(event, RolledBack):
            return {"rolled_back": {"index": event.index}}
        if self.request.edgewise.provenance and isinstance(event, Token):
            names = ("index", "id", "source", "reason", "score", "threshold", "seconds", "wait")
            token = {name: getattr(event, name) for name in names} | {"text": self.text(event.id)}
            both = {"edge": self.candidates(event.edge), "cloud": self.candidates(event.cloud)}
            return {"token": token | both}
        if self.request.edgewise.provenance and isinstance(event, Finished):
            return {"timing": msgspec.to_builtins(event.timing)}
        return None

    def text(self, token: int) -> str:
        """One token's text; parts of characters become U+FFFD."""
        return self.tokenizer.piece(token).decode("utf-8", "replace")

    def candidates(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        """Text, logprob in nats and bytes of each."""
        return [
            {
                "token": self.text(one.id),
                "logprob": one.logprob,
                "bytes": list(self.tokenizer.piece(one.id)),
            }
            for one in candidates
        ]


def candidates_of(token: Token) -> Sequence[Candidate]:
    """Those of the model that wrote it."""
    return token.cloud if token.source == "cloud" else token.edge


def _usage(usage: Usage) -> dict[str, Any]:
    counts = UsageCounts(usage)
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.written,
        "total_tokens": counts.prompt + counts.written,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "edgewise": counts.own,
    }


class Item(msgspec.Struct):
    """A part of an answer as far as it is written: a text, or a call with its arguments."""

    index: int
    call: CallBegun | None = None
    text: str = ""
    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(24))


class EventWriter(Writer):
    """Replies as typed events, of answers that are a list of items."""

    end, named = None, True

    def __init__(self, request: AnswerRequest, tokenizer: Tokenizer, **options: Any) -> None:
        super().__init__(request, tokenizer, **options)
        self.items: list[Item] = []

    @abstractmethod
    def opened(self, item: Item) -> Iterator[dict[str, Any]]:
        """The events of an item's beginning."""

    @abstractmethod
    def grown(self, item: Item, more: str) -> dict[str, Any]:
        """The event of more of an item."""

    @abstractmethod
    def closed(self, item: Item, end: Finished | None) -> Iterator[dict[str, Any]]:
        """The events of an item's end; the last one ends with the answer."""

    @abstractmethod
    def ended(self, end: Finished) -> Iterator[dict[str, Any]]:
        """The events of the answer's end."""

    def more(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        if not isinstance(event, Token | Finished):
            return
        for part in self.parts(event):
            if isinstance(part, CallBegun):
                yield from self._open(part)
                continue
            if isinstance(part, Said) and (not self.items or self.items[-1].call):
                yield from self._open()
            self.items[-1].text += part.text
            yield self.grown(self.items[-1], part.text)
        if isinstance(event, Finished):
            if not self.items:
                yield from self._open()
            yield from self.closed(self.items[-1], event)
            yield from self.ended(event)

    def _open(self, call: CallBegun | None = None) -> Iterator[dict[str, Any]]:
        for item in self.items[-1:]:
            yield from self.closed(item, None)
        self.items.append(Item(len(self.items), call))
        yield from self.opened(self.items[-1])


class EventStream(EventSourceResponse):
    """A reply as server-sent events, with pings while there are none; closes `held` at the end."""

    def __init__(
        self,
        writer: Writer,
        events: AsyncGenerator[AnswerEvent],
        held: AsyncExitStack,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_streamed(writer, events), ping=PING_SECONDS, sep="\n", headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Nothing was begun where the client was gone before.
        async with self._held:
            await super().__call__(scope, receive, send)


async def _streamed(
    writer: Writer, events: AsyncGenerator[AnswerEvent]
) -> AsyncIterator[dict[str, str]]:
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
    caller, local = caller_of(request), decoding.messages[-1].local
    async with AsyncExitStack() as held:
        await held.enter_async_context(caller.entered())
        ticket = answering.enter(decoding)
        held.callback(ticket.give_up)
        read, grammar = await unless_gone(request, answering.read(decoding.prompt))
        prompt = caller.read(read)
        writer.prompt_ids = prompt.ids
        unheld = grammar.unheld if grammar else ()
        names = [*writer.ignored, *(f"tools.{shown(keyword)}" for keyword in unheld)]
        if local:
            answering.local.answered(decoding.messages, owner=caller.name)
        text = ""

        def seen(event: AnswerEvent) -> AnswerEvent:
            nonlocal text
            request.app.state.metrics.count(answering.name, event)
            if local and isinstance(event, Token | Finished):
                # Up to each token: the client may leave at any of them.
                text += event.text
                answering.local.writing(text, owner=caller.name)
            return caller.seen(event)

        events = answering.events(decoding, prompt, grammar, ticket, seen=seen)
        held.push_async_callback(events.aclose)
        if writer.request.stream:
            return EventStream(writer, events, held.pop_all(), ignored_header(names))

        async def collected() -> list[AnswerEvent]:
            return [event async for event in events]

        whole = writer.whole(await unless_gone(request, collected()))
        return JSONResponse(whole, headers=ignored_header(names))
    # Types cannot tell that nothing above swallows exceptions.
    raise AssertionError


async def queued(
    answering: Answering, request: Request, work: Callable[[], Coroutine[Any, Any, _T]]
) -> _T:
    """The result of `work`, from a place in the queue, so no more is read than can be answered.

    Raises `ApiError` as `Answering.enter`, `Caller.entered` and `unless_gone` do.
    """
    async with caller_of(request).entered():
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
