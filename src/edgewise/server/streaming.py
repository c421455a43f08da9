"""Server-sent events, and work that ends when the client leaves."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from msgspec.structs import replace
from sse_starlette.sse import EventSourceResponse
from starlette.types import Receive, Scope, Send

from edgewise.errors import EdgewiseError
from edgewise.events import Event, Finished, Token
from edgewise.server.answering import Answering, DecodeRequest, Ticket
from edgewise.server.callers import Caller, caller_of
from edgewise.server.errors import ApiError, api_error, unexpected
from edgewise.server.local_messages import LocalAnswer
from edgewise.server.replies import Framing, Writer
from edgewise.server.requests import ignored_header, shown

PING_SECONDS = 10

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def described(stream: str) -> dict[int | str, dict[str, Any]]:
    """An endpoint's replies in the API's description: those of the API it speaks."""
    text, whole = {"schema": {"type": "string"}}, {"schema": {"type": "object"}}
    content = {"application/json": whole, "text/event-stream": text}
    return {200: {"description": f"The answer; with `stream`, {stream}.", "content": content}}


class EventStream(EventSourceResponse):
    """Chunks as server-sent events, with pings while there are none; gives the ticket back."""

    def __init__(
        self,
        chunks: AsyncGenerator[dict[str, Any]],
        ticket: Ticket,
        caller: Caller | None = None,
        framing: Framing | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        events = _encoded(chunks, framing or Framing())
        super().__init__(events, ping=PING_SECONDS, sep="\n", headers=headers)
        self._chunks, self._ticket, self._caller = chunks, ticket, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Never begun where the client was gone before; else the work gives the ticket back.
            await self._chunks.aclose()
            if not self._ticket.running:
                self._ticket.leave()
            if self._caller is not None:
                await self._caller.leave()


async def _encoded(
    chunks: AsyncGenerator[dict[str, Any]], framing: Framing
) -> AsyncIterator[dict[str, str]]:
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield framing.frame(chunk)
    except ApiError as error:
        yield framing.frame(framing.failed(error))
    except EdgewiseError as error:
        yield framing.frame(framing.failed(api_error(error)))
    except Exception:
        _log.exception("an answer failed")
        yield framing.frame(framing.failed(unexpected()))
    if framing.end is not None:
        yield {"data": framing.end}


async def reply_with(
    writer: Writer,
    decoding: DecodeRequest,
    answering: Answering,
    request: Request,
    *,
    stream: bool,
) -> Response:
    """Answer; stop the work when the client leaves.

    Raises what `Answering.enter` and `Answering.read` do, and `ApiError` for a key at its limits.
    """
    caller, ticket = caller_of(request), None
    caller.enter()
    try:
        await caller.ask(cloud=decoding.policy.asks)
        ticket = answering.enter(decoding)
        ready = await unless_gone(request, answering.read(decoding.prompt))
        ready = ready._replace(prompt=await caller.read(ready.prompt))
        await unless_gone(request, writer.read(ready.prompt, ticket))
    except BaseException:
        if ticket is not None and not ticket.running:
            ticket.leave()
        await caller.leave()
        raise
    unheld = ready.grammar.unheld if ready.grammar else ()
    headers = ignored_header([*writer.ignored, *(f"tools.{shown(keyword)}" for keyword in unheld)])
    decoding = replace(decoding, limited=caller.limited)
    events = _seen(caller, answering.events(decoding, ready, ticket))
    if decoding.messages[-1].local:
        answering.local.answered(decoding.messages, owner=caller.name)
        events = _remembered(answering.local.answer(owner=caller.name), events)
    if stream:
        return EventStream(writer.chunks(events), ticket, caller, writer, headers)
    try:
        whole = writer.whole(await unless_gone(request, _collected(events)))
        return JSONResponse(whole, headers=headers)
    finally:
        if not ticket.running:
            ticket.leave()
        await caller.leave()


async def _seen(caller: Caller, events: AsyncGenerator[Event]) -> AsyncGenerator[Event]:
    async with aclosing(events):
        async for event in events:
            yield caller.seen(event)


async def _remembered(answer: LocalAnswer, events: AsyncGenerator[Event]) -> AsyncGenerator[Event]:
    """Remembers a local answer up to each token: the client may leave at any of them."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Token | Finished):
                answer.add(event.text)
            yield event


async def _collected(events: AsyncGenerator[Event]) -> list[Event]:
    async with aclosing(events):
        return [event async for event in events]


async def queued(
    answering: Answering, request: Request, work: Callable[[], Coroutine[Any, Any, _T]]
) -> _T:
    """The result of `work`, from a place in the queue, so no more is read than can be answered.

    Raises `ApiError` as `Answering.enter` and `unless_gone` do.
    """
    caller, ticket = caller_of(request), None
    caller.enter()
    try:
        await caller.ask(cloud=False)
        ticket = answering.admission.enter()
        return await unless_gone(request, work())
    finally:
        if ticket is not None:
            ticket.leave()
        await caller.leave()


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
