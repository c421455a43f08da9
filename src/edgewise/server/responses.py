"""`POST /v1/responses`: a chat in the terms of OpenAI's newer API, with its typed events."""

import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from edgewise.events import Event
from edgewise.prompts import Prompt
from edgewise.server import response_items as items
from edgewise.server.admission import Ticket
from edgewise.server.bodies import JsonRoute
from edgewise.server.chat_completions import ChatReply, prepared
from edgewise.server.errors import ApiError
from edgewise.server.harmless import ignored
from edgewise.server.models import Models
from edgewise.server.response_items import WrittenCall, WrittenText
from edgewise.server.responses_schemas import ResponsesReply, ResponsesRequest
from edgewise.server.streaming import reply_with, streamed
from edgewise.server.writing import Writer


def routes(models: Models) -> APIRouter:
    """The endpoint over the loaded pairs."""
    router = APIRouter(route_class=JsonRoute)
    told = streamed("with `stream` as server-sent events, each named by its type")

    @router.post("/responses", response_model=ResponsesReply, responses=told)
    async def responses(body: ResponsesRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """An answer to a conversation, whole or as server-sent events. Nothing is kept of it."""
        answering, decoding, chat = await prepared(models, body.chat(), request, joins=True)
        writer = ResponsesWriter(body, chat)
        return await reply_with(writer, decoding, answering, request, stream=bool(body.stream))

    return router


class ResponsesWriter(Writer):
    """Translates a chat's reply."""

    end, named = None, True

    def __init__(self, request: ResponsesRequest, chat: ChatReply) -> None:
        self.ignored = [*ignored(request), *request.ignored]
        self._request, self._chat = request, chat
        self.id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._number = -1
        self._items: list[WrittenText | WrittenCall] = []
        self._waiting: list[dict[str, Any]] = []

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        reply = self._chat.whole(events)
        (choice,) = reply["choices"]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        if message["content"] or not calls:
            self._text().add(message["content"] or "", _logprobs(choice))
        for call in calls:
            self._call(call).add(call["function"]["arguments"])
        told = self._ended(choice["finish_reason"], reply["usage"])
        return {**told, "edgewise": reply["edgewise"]} if "edgewise" in reply else told

    async def read(self, prompt: Prompt, ticket: Ticket) -> None:
        await self._chat.read(prompt, ticket)

    async def chunks(self, events: AsyncGenerator[Event]) -> AsyncGenerator[dict[str, Any]]:
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._response("in_progress"))
        reason = "stop"
        async with aclosing(self._chat.chunks(events)) as chunks:
            async for chunk in chunks:
                for choice in chunk["choices"]:
                    reason = choice["finish_reason"] or reason
                    own = {"edgewise": chunk["edgewise"]} if "edgewise" in chunk else {}
                    for event, more in self._pieces(choice, own):
                        yield self._event(event, **more)
                if not chunk["choices"]:
                    for event, more in self._closing(reason, chunk["usage"]):
                        yield self._event(event, **more)

    def failed(self, error: ApiError) -> dict[str, Any]:
        told = {"code": error.code or "server_error", "message": str(error)}
        return self._event("failed", response={**self._response("failed"), "error": told})

    def _pieces(self, choice: dict[str, Any], own: dict[str, Any]) -> Iterator[items.Event]:
        """What is said of a chunk of the chat's; `own` stands beside what there is."""
        text, logprobs = choice["delta"].get("content") or "", _logprobs(choice)
        for call in choice["delta"].get("tool_calls") or ():
            if "id" in call:
                yield from self._close("completed")
                yield from self._call(call).opened()
            if arguments := call["function"]["arguments"]:
                yield from self._grown(own, arguments)
                own = {}
        if text or logprobs:
            if not self._items or not isinstance(self._items[-1], WrittenText):
                yield from self._close("completed")
                yield from self._text().opened()
            yield from self._grown(own, text, logprobs)
            own = {}
        self._waiting += [own] if own else []
        if self._items:
            yield from self._told_of_nothing()

    def _grown(self, own: dict[str, Any], *more: Any) -> Iterator[items.Event]:
        """What is said of the last item where there is more of it."""
        yield from self._told_of_nothing()
        event, told = self._items[-1].add(*more)
        yield event, told | own

    def _told_of_nothing(self) -> Iterator[items.Event]:
        """What has to be said of tokens that added nothing, such as a call's opening."""
        waiting, self._waiting = self._waiting, []
        for own in waiting:
            yield from self._grown(own, "")

    def _closing(self, reason: str, usage: dict[str, Any]) -> Iterator[items.Event]:
        if not self._items:
            yield from self._text().opened()
            yield from self._told_of_nothing()
        response = self._ended(reason, usage)
        yield from self._close(response["status"])
        yield response["status"], {"response": response}

    def _close(self, status: str) -> Iterator[items.Event]:
        if self._items:
            yield from self._items[-1].closed(status)

    def _text(self) -> WrittenText:
        item = WrittenText(len(self._items))
        self._items.append(item)
        return item

    def _call(self, call: dict[str, Any]) -> WrittenCall:
        item = WrittenCall(len(self._items), call["id"], call["function"]["name"])
        self._items.append(item)
        return item

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number, **more}

    def _ended(self, reason: str, usage: dict[str, Any]) -> dict[str, Any]:
        cut = reason == "length"
        status = "incomplete" if cut else "completed"
        last = len(self._items) - 1
        return {
            **self._response(status),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [
                item.told(status if item.index == last else "completed") for item in self._items
            ],
            "usage": _usage(usage),
        }

    def _response(self, status: str) -> dict[str, Any]:
        """What was asked, and nothing yet of what was answered."""
        asked = self._request
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": asked.model,
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": _told(asked.text and asked.text.format) or {"type": "text"}},
            "tool_choice": _told(asked.tool_choice) or "auto",
            "tools": [_told(tool) for tool in asked.tools or ()],
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _logprobs(choice: dict[str, Any]) -> list[Any]:
    return choice["logprobs"]["content"] if choice["logprobs"] else []


def _told(asked: BaseModel | str | None) -> Any:
    """A part of the request, as it came."""
    if isinstance(asked, BaseModel):
        return asked.model_dump(by_alias=True, exclude_none=True)
    return asked


def _usage(chat: dict[str, Any]) -> dict[str, Any]:
    cached = chat["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": chat["total_tokens"],
        "edgewise": chat["edgewise"],
    }
