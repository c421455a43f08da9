"""Server-sent events, and work that ends when the client leaves."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from sse_starlette.sse import EventSourceResponse
from starlette.types import Receive, Scope, Send

from edgewise.errors import EdgewiseError
from edgewise.events import Event
from edgewise.server.admission import Ticket
from edgewise.server.answering import Answering, DecodeRequest
from edgewise.server.errors import ApiError, api_error, unexpected
from edgewise.server.replies import ReplyWriter

PING_SECONDS = 10

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream` as server-sent events that end with `[DONE]`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
"""What an endpoint's description says of both forms."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class EventStream(EventSourceResponse):
    """Chunks as SSE, `[DONE]` at the end, pings while nothing comes; gives the ticket back."""

    def __init__(self, chunks: AsyncGenerator[dict[str, Any]], ticket: Ticket) -> None:
        super().__init__(_encoded(chunks), ping=PING_SECONDS, sep="\n")
        self._chunks, self._ticket = chunks, ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Never begun where the client was gone before; else the work gives the ticket back.
            await self._chunks.aclose()
            if not self._ticket.running:
                self._ticket.leave()


async def _encoded(chunks: AsyncGenerator[dict[str, Any]]) -> AsyncIterator[dict[str, str]]:
    encode = msgspec.json.encode
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield {"data": encode(chunk).decode()}
    except ApiError as error:
        yield {"data": encode(error.body()).decode()}
    except EdgewiseError as error:
        yield {"data": encode(api_error(error).body()).decode()}
    except Exception:
        _log.exception("an answer failed")
        yield {"data": encode(unexpected().body()).decode()}
    yield {"data": "[DONE]"}


async def reply_with(
    writer: ReplyWriter,
    decoding: DecodeRequest,
    answering: Answering,
    request: Request,
    *,
    stream: bool,
) -> Response:
    """Answer, and end the work where the client leaves.

    Raises what `Answering.enter` and `Answering.read` do.
    """
    ticket = answering.enter(decoding)
    try:
        ticket.at_end(answering.plugs.add(writer.id, decoding.plug, request))
        prompt = await _unless_gone(request, answering.read(decoding.prompt))
    except BaseException:
        ticket.leave()
        raise
    writer.prompt_ids = prompt.ids
    events = answering.events(decoding, prompt, ticket)
    if stream:
        return EventStream(writer.chunks(events), ticket)
    try:
        return JSONResponse(writer.whole(await _unless_gone(request, _collected(events))))
    finally:
        if not ticket.running:
            ticket.leave()


async def _collected(events: AsyncGenerator[Event]) -> list[Event]:
    async with aclosing(events):
        return [event async for event in events]


async def _unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """`work`'s result; it is cancelled when the client leaves. Raises `ApiError` 499 then."""

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
