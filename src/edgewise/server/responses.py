"""`POST /v1/responses`: a chat in the terms of OpenAI's newer API, with its typed events."""

import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.events import Event
from edgewise.server.answering import Answering
from edgewise.server.chat_completions import ChatReply, prepared
from edgewise.server.errors import ApiError
from edgewise.server.harmless import ignored
from edgewise.server.responses_schemas import ResponsesReply, ResponsesRequest
from edgewise.server.streaming import reply_with, streamed
from edgewise.server.writing import Writer


def routes(answering: Answering) -> APIRouter:
    """The endpoint over a loaded pair."""
    router = APIRouter()
    told = streamed("with `stream` as server-sent events, each named by its type")

    @router.post("/responses", response_model=ResponsesReply, responses=told)
    async def responses(body: ResponsesRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """An answer to a conversation, whole or as server-sent events. Nothing is kept of it."""
        decoding, chat = prepared(answering, body.chat(), request)
        writer = ResponsesWriter(body, chat)
        return await reply_with(writer, decoding, answering, request, stream=bool(body.stream))

    return router


class ResponsesWriter(Writer):
    """Translates a chat's reply."""

    end, named = None, True

    def __init__(self, request: ResponsesRequest, chat: ChatReply) -> None:
        self.ignored = [*ignored(request), *request.ignored]
        self._request, self._chat = request, chat
        self._id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._number = -1
        self._message: _Message | None = None

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        reply = self._chat.whole(events)
        (choice,) = reply["choices"]
        message = _Message()
        message.add(choice["message"]["content"], _logprobs(choice))
        told = self._ended(message, choice["finish_reason"], reply["usage"])
        return {**told, "edgewise": reply["edgewise"]} if "edgewise" in reply else told

    async def chunks(self, events: AsyncGenerator[Event]) -> AsyncGenerator[dict[str, Any]]:
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress"))
        reason = "stop"
        async with aclosing(self._chat.chunks(events)) as chunks:
            async for chunk in chunks:
                for choice in chunk["choices"]:
                    reason = choice["finish_reason"] or reason
                    own = {"edgewise": chunk["edgewise"]} if "edgewise" in chunk else {}
                    for event in self._pieces(choice, own):
                        yield event
                if not chunk["choices"]:
                    for event in self._closing(reason, chunk["usage"]):
                        yield event

    def failed(self, error: ApiError) -> dict[str, Any]:
        told = {"code": error.code or "server_error", "message": str(error)}
        response = {**self._response("failed"), "error": told}
        return self._event("response.failed", response=response)

    def _pieces(self, choice: dict[str, Any], own: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Events for a chunk of the chat's."""
        text = choice["delta"].get("content") or ""
        logprobs = _logprobs(choice)
        if not (text or logprobs or own):
            return
        if self._message is None:
            self._message = _Message()
            yield from self._opened(self._message)
        self._message.add(text, logprobs)
        yield self._event(
            "response.output_text.delta",
            **self._message.place,
            delta=text,
            logprobs=logprobs,
            **own,
        )

    def _opened(self, message: "_Message") -> Iterator[dict[str, Any]]:
        item = {**message.item("in_progress"), "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **message.place, part=message.part())

    def _closing(self, reason: str, usage: dict[str, Any]) -> Iterator[dict[str, Any]]:
        message = self._message
        if message is None:
            message = _Message()
            yield from self._opened(message)
        part = message.part()
        text = {"text": part["text"], "logprobs": part["logprobs"]}
        yield self._event("response.output_text.done", **message.place, **text)
        yield self._event("response.content_part.done", **message.place, part=part)
        response = self._ended(message, reason, usage)
        (item,) = response["output"]
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(f"response.{response['status']}", response=response)

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **more}

    def _ended(self, message: "_Message", reason: str, usage: dict[str, Any]) -> dict[str, Any]:
        cut = reason == "length"
        status = "incomplete" if cut else "completed"
        return {
            **self._response(status),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [message.item(status)],
            "usage": _usage(usage),
        }

    def _response(self, status: str) -> dict[str, Any]:
        """What was asked, and nothing yet of what was answered."""
        asked = self._request
        return {
            "id": self._id,
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
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": [],
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None,
        }


class _Message:
    """The answer's one message, as it grows."""

    def __init__(self) -> None:
        self._id = f"msg_{secrets.token_hex(24)}"
        self._texts: list[str] = []
        self._logprobs: list[Any] = []

    @property
    def place(self) -> dict[str, Any]:
        """Where its text is in the response."""
        return {"item_id": self._id, "output_index": 0, "content_index": 0}

    def add(self, text: str, logprobs: Sequence[Any]) -> None:
        self._texts.append(text)
        self._logprobs += logprobs

    def part(self) -> dict[str, Any]:
        """Its text so far."""
        text = "".join(self._texts)
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": list(self._logprobs),
        }

    def item(self, status: str) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self._id,
            "role": "assistant",
            "status": status,
            "content": [self.part()],
        }


def _logprobs(choice: dict[str, Any]) -> list[Any]:
    return choice["logprobs"]["content"] if choice["logprobs"] else []


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
