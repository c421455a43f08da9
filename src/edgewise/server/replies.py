"""Turns an answer's events into JSON or an SSE stream; a client that leaves ends its answer."""

import asyncio
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, ClassVar, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response
from msgspec.structs import asdict
from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.types import Receive, Scope, Send

from edgewise.edge.base import Tokenizer
from edgewise.errors import EdgewiseError
from edgewise.events import Candidate, Finished, Pending, RolledBack, Token, Usage
from edgewise.grammar.calls import CallBegun, CallReader, Part, Said
from edgewise.server.answering import AnswerEvent, DecodeRequest, QueuePlace
from edgewise.server.callers import caller_of
from edgewise.server.errors import ApiError, refusal_of, shown
from edgewise.server.local_messages import LocalAnswer
from edgewise.server.models import pair_of
from edgewise.server.requests import AnswerRequest, OpenAIRequest, ignored, ignored_header

# Many proxies close a stream that was silent for a minute, as while a long prompt is read.
PING_SECONDS = 10

# Else each stream is cut as soon as the process is told to end. An answer has an end of its own.
AppStatus.disable_automatic_graceful_drain()

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Item(msgspec.Struct):
    """A part of an answer: the tool call that `call` begins or, if `call` is None, a text.

    `index` counts from 0. `text` is the text, or the call's arguments as JSON, as far as written.
    `id` is a random name, for the APIs that name the parts.
    """

    index: int
    call: CallBegun | None = None
    text: str = ""
    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(24))


class Writer(ABC):
    """Base class of the writers of one reply, in the form of the API that was called.

    `reply_with` sets `prompt_ids` (the prompt's) and `context` (that of the edge model, in tokens),
    then calls `begun`, `more` for each event and, unless the chunks are streamed, `reply`. `calls`
    finds the tool calls in the answer's text (None: there can be none), `items` are the parts of
    the answer so far. If the conversation is `local` (only trusted clouds may see it), `mark` has
    the field `edgewise` with `cloud` "none", for the answer's message; clients should send it back.
    """

    end: ClassVar[str | None] = "[DONE]"
    """The last data line of a stream; None if the API has none."""

    def __init__(
        self,
        request: AnswerRequest,
        tokenizer: Tokenizer,
        *,
        calls: CallReader | None = None,
        local: bool = False,
    ) -> None:
        self.request, self.calls, self.tokenizer = request, calls, tokenizer
        self.mark: dict[str, Any] = {"edgewise": {"cloud": "none"}} if local else {}
        self.prompt_ids: Sequence[int] = ()
        self.context = 0
        self.items: list[Item] = []

    @abstractmethod
    def begun(self) -> Iterator[dict[str, Any]]:
        """Yield the first chunks (JSON objects) of a stream, before any event."""

    @abstractmethod
    def more(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        """Yield the chunks of a stream for one event; add its text to `items` (see `written`)."""

    @abstractmethod
    def reply(self, end: Finished) -> dict[str, Any]:
        """Return the whole reply, once `more` has had all events; `end` is the last of them."""

    def failed(self, error: ApiError) -> dict[str, Any]:
        """Return the chunk that reports an error in a begun stream; by default in OpenAI's form."""
        return error.body()

    def written(self, event: Token | Finished) -> Iterator[tuple[Item, str]]:
        """Add an event's text to `items`; yield (item, text) for each text that is added.

        A new item is announced by (item, ""), before its first text. Text that may begin a tool
        call is held back until it is known whether it does.
        """
        parts: list[Part] = [Said(event.text)] if event.text else []
        if self.calls is not None:
            parts = self.calls.feed(event.text)
            parts += self.calls.finish() if isinstance(event, Finished) else []
        for part in parts:
            call = part if isinstance(part, CallBegun) else None
            if call or not self.items or (isinstance(part, Said) and self.items[-1].call):
                yield self.begin(call), ""
            if not isinstance(part, CallBegun):
                self.items[-1].text += part.text
                yield self.items[-1], part.text

    def begin(self, call: CallBegun | None = None) -> Item:
        """Append a new item to `items` and return it: the tool call `call` or, if None, a text."""
        self.items.append(Item(len(self.items), call))
        return self.items[-1]

    def finish_reason(self, end: Finished) -> str:
        """Return why the answer ended, in OpenAI's words: `stop`, `length` or `tool_calls`."""
        called = self.calls is not None and self.calls.called
        return "tool_calls" if called and end.finish_reason == "stop" else end.finish_reason


class UsageCounts:
    """Token counts of an answer, for the field `usage` of each API.

    `prompt` counts the prompt's tokens, `cached` those of them found in the edge model's KV cache,
    `written` the answer's. `own` is a dict of `Usage`'s other fields, for `usage.edgewise`.
    """

    def __init__(self, usage: Usage) -> None:
        self.own = msgspec.to_builtins(usage)
        self.prompt, self.cached = self.own.pop("prompt_tokens"), self.own.pop("cached_tokens")
        self.written = usage.edge_tokens + usage.cloud_tokens


class ChunkWriter(Writer):
    """Base class of the writers for `/v1/chat/completions` and `/v1/completions`; one choice each.

    `prefix` begins a reply's `id`. Its `object` is `kind`, that of a stream's chunks `chunk_kind`.
    """

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
        self._own: dict[str, Any] = {"tokens": []}
        self.logprobs = defaultdict[str, list[Any]](list)
        """The logprobs of all chunks by field, collected for the whole reply."""

    @abstractmethod
    def opening(self) -> dict[str, Any] | None:
        """Return a choice's fields for a first chunk without text; None to send no such chunk."""

    @abstractmethod
    def piece(
        self, item: Item | None = None, more: str = "", token: Token | None = None
    ) -> dict[str, Any]:
        """Return a choice's fields for a chunk that adds the text `more` to `item` (None: no text).

        If `item` is a tool call and `more` is empty, the chunk names the call. The fields include
        the logprobs of `token`, if there is one and the request asked for them.
        """

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """Return the fields of the choice in the whole reply: its text or message, and logprobs."""

    def reply(self, end: Finished) -> dict[str, Any]:
        own = {"edgewise": self._own} if self.request.edgewise.provenance else {}
        return {
            **self._head,
            "object": self.kind,
            "choices": [{"index": 0, **self.body(), **self._ended(end)}],
            "usage": _usage(end.usage),
            **own,
        }

    def begun(self) -> Iterator[dict[str, Any]]:
        opening, own = self.opening(), None
        if self.request.edgewise.provenance:
            own = {"prompt_token_ids": list(self.prompt_ids)} if self.prompt_ids else {}
        if opening is not None or own is not None:
            yield self.chunk(opening or self.piece(), own)

    def more(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        own = self._fields(event)
        if isinstance(event, Token | Finished):
            token = event if isinstance(event, Token) else None
            if event.text or own or token is None or self.request.candidates is not None:
                # A text begins without a word, a call with its name.
                said = [(item, more) for item, more in self.written(event) if more or item.call]
                # One token may end a text and begin a call: only the last chunk bears its logprobs.
                *first, last = said or [(None, "")]
                for item, more in first:
                    yield self.chunk(self.piece(item, more))
                ended = {} if isinstance(event, Token) else self._ended(event)
                yield self.chunk({**self.piece(*last, token), **ended}, own)
        elif own is not None:
            yield self.chunk(self.piece(), own)
        if isinstance(event, Finished) and self._with_usage:
            yield {**self.chunk({}), "choices": [], "usage": _usage(event.usage)}

    def _ended(self, end: Finished) -> dict[str, Any]:
        return {"finish_reason": self.finish_reason(end), "stop_reason": end.stop}

    def chunk(self, choice: dict[str, Any], own: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return a chunk: its only choice has the fields `choice`, its field `edgewise` is `own`.

        Logprobs and `own` (None: no field `edgewise`) are also kept for the whole reply.
        """
        made: dict[str, Any] = {**self._head, "object": self.chunk_kind}
        if self._with_usage:
            made["usage"] = None
        made["choices"] = [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]
        for name, values in (choice.get("logprobs") or {}).items():
            self.logprobs[name] += values or ()
        if own is None:
            return made
        for name, value in own.items():
            if name == "token":
                self._own["tokens"].append(value)
            else:
                self._own[name] = value
        return {**made, "edgewise": own}

    def _fields(self, event: AnswerEvent) -> dict[str, Any] | None:
        """Return the value of the field `edgewise` for an event; None if there is none."""
        if isinstance(event, Pending):
            return {"pending": {"index": event.index, "text": event.text}}
        if isinstance(event, RolledBack):
            return {"rolled_back": {"index": event.index}}
        if self.request.edgewise.provenance and isinstance(event, Token):
            both = {"edge": self.candidates(event.edge), "cloud": self.candidates(event.cloud)}
            token = asdict(event) | {"text": self.text(event.id)} | both
            del token["logprob"]  # it is among the candidates of who wrote it
            if (draft := event.draft) is not None:
                token["draft"] = {"id": draft, "text": self.text(draft)}
            return {"token": token}
        if self.request.edgewise.provenance and isinstance(event, Finished):
            return {"timing": msgspec.to_builtins(event.timing)}
        return None

    def text(self, token: int) -> str:
        """Return one token's text; bytes that are no whole character become U+FFFD."""
        return self.tokenizer.piece(token).decode("utf-8", "replace")

    def candidates(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        """Return a dict for each candidate: `token` (its text), `logprob` (in nats) and `bytes`."""
        return [
            {
                "token": self.text(one.id),
                "logprob": one.logprob,
                "bytes": list(self.tokenizer.piece(one.id)),
            }
            for one in candidates
        ]


def candidates_of(token: Token) -> Sequence[Candidate]:
    """Return the likeliest ids by the model that wrote the token, best first; empty if unknown."""
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


class EventWriter(Writer):
    """Base class of the writers for APIs with typed events, whose answers are lists of items."""

    end = None

    @abstractmethod
    def opened(self, item: Item) -> Iterator[dict[str, Any]]:
        """Yield the events for the beginning of an item."""

    @abstractmethod
    def grown(self, item: Item, more: str) -> dict[str, Any]:
        """Return the event for the text `more`, which was added to an item."""

    @abstractmethod
    def closed(self, item: Item, end: Finished | None) -> Iterator[dict[str, Any]]:
        """Yield the events for the end of an item; `end` is None if another item follows."""

    @abstractmethod
    def ended(self, end: Finished) -> Iterator[dict[str, Any]]:
        """Yield the events for the end of the answer."""

    def more(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        if not isinstance(event, Token | Finished):
            return
        for item, more in self.written(event):
            if more:
                yield self.grown(item, more)
                continue
            for before in self.items[-2:-1]:
                yield from self.closed(before, None)
            yield from self.opened(item)
        if isinstance(event, Finished):
            if not self.items:
                yield from self.opened(self.begin())
            yield from self.closed(self.items[-1], event)
            yield from self.ended(event)


class EventStream(EventSourceResponse):
    """A response that streams what `writer` makes of `events`, and pings every `PING_SECONDS`.

    `held` has the request's resources, such as its place in the queue; it is closed at the end.
    """

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
        # If the client has left already, the stream never begins, and so closes nothing itself.
        async with self._held:
            await super().__call__(scope, receive, send)


async def _streamed(writer: Writer, events: AsyncGenerator[AnswerEvent]) -> AsyncIterator[bytes]:
    # JSON is one line, so that nothing is to be escaped.
    def framed(chunk: dict[str, Any]) -> bytes:
        name = f"event: {chunk['type']}\n".encode() if "type" in chunk else b""
        return b"%sdata: %s\n\n" % (name, msgspec.json.encode(chunk))

    try:
        async with aclosing(events):
            for chunk in writer.begun():
                yield framed(chunk)
            async for event in events:
                for chunk in writer.more(event):
                    yield framed(chunk)
    # The status was sent, so that the client can only be told in the stream.
    except Exception as error:
        if not isinstance(error, ApiError | EdgewiseError):
            _log.exception("an answer failed")
        yield framed(writer.failed(refusal_of(error)))
    if writer.end is not None:
        yield f"data: {writer.end}\n\n".encode()


async def reply_with(writer: Writer, decoding: DecodeRequest, request: Request) -> Response:
    """Return the response that `writer` makes of an answer: JSON, or a stream if asked for.

    `decoding` is the request for the answer. It waits in the queue. The answer's tokens count for
    `/metrics` and the API key's limits. The answer is stopped if the client leaves. Raises
    `ApiError` or `EdgewiseError`; once a stream has begun, an error is sent as a chunk of it.
    """
    answering, caller = pair_of(request), caller_of(request)
    local = decoding.messages[-1].local
    async with AsyncExitStack() as held:
        # Before the prompt is read, which takes memory and a thread: a full queue refuses at once.
        place = await held.enter_async_context(admitted(request))
        prompt = caller.read(await unless_gone(request, answering.read(decoding.read)))
        grammar = await unless_gone(request, answering.grammar(decoding.format))
        writer.prompt_ids, writer.context = prompt.ids, answering.edge.context
        unheld = grammar.unheld if grammar else ()
        names = [*ignored(writer.request), *(f"tools.{shown(keyword)}" for keyword in unheld)]
        # Before the answer begins: a client may send back a part of it.
        if local:
            answering.local.answered(decoding.messages, owner=caller.name)
        answer = LocalAnswer(answering.local, caller.name)

        def seen(event: AnswerEvent) -> AnswerEvent:
            request.app.state.metrics.count(event)
            if isinstance(event, Token):
                request.state.written[event.source] += 1
            if local and isinstance(event, Token | Finished):
                answer.wrote(event.text)
            return caller.seen(event)

        events = answering.events(decoding, prompt, grammar, place, seen=seen)
        held.push_async_callback(events.aclose)
        if writer.request.stream:
            return EventStream(writer, events, held.pop_all(), ignored_header(names))

        async def collected() -> Response:
            end: AnswerEvent | None = None
            # What a stream would say is kept by the writer.
            deque(writer.begun(), maxlen=0)
            async for end in events:
                deque(writer.more(end), maxlen=0)
            assert isinstance(end, Finished)
            # As in a stream, a number that JSON does not have is null.
            body = msgspec.json.encode(writer.reply(end))
            return Response(body, 200, ignored_header(names), "application/json")

        return await unless_gone(request, collected())
    # Types cannot tell that nothing above swallows exceptions.
    raise AssertionError


@asynccontextmanager
async def admitted(request: Request) -> AsyncGenerator[QueuePlace]:
    """Hold a place in the server's queue while the context is open; yield the place.

    The request counts towards its API key's limits. Whoever calls `acquire` of the place must call
    its `release`. Raises `ApiError` 429 if the queue is full or the key has reached a limit.
    """
    async with caller_of(request).entered(pair_of(request).queue) as place:
        yield place


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of `work`. If the client leaves, cancel it and raise `ApiError` 499."""

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
        # Nobody can close a generator in which `working` still is.
        await asyncio.gather(working, leaving, return_exceptions=True)
