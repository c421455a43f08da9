"""`POST /v1/messages`: a chat in Anthropic's terms, with its typed events; a count of tokens."""

import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import replace

from edgewise.events import Event
from edgewise.prompts import Prompt
from edgewise.server.admission import Ticket
from edgewise.server.bodies import JsonRoute
from edgewise.server.chat_completions import ChatReply, prepared, unread
from edgewise.server.errors import ApiError, anthropic_body
from edgewise.server.harmless import ignored, said
from edgewise.server.messages_schemas import (
    AnthropicErrorReply,
    CountReply,
    CountRequest,
    MessagesReply,
    MessagesRequest,
)
from edgewise.server.models import Models, policy_for
from edgewise.server.streaming import queued, reply_with, streamed
from edgewise.server.writing import Writer

VERSION_HEADER, VERSIONS = "anthropic-version", ("2023-06-01", "2026-10-21")
"""Those whose clients the replies were tried with."""

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": AnthropicErrorReply} for status in (400, 401, 404, 413, 429, 502)
}


def routes(models: Models) -> APIRouter:
    """The endpoints over the loaded pairs."""
    router = APIRouter(route_class=JsonRoute, responses=REFUSALS)
    told = streamed("with `stream` as server-sent events, each named by its type")

    @router.post("/messages", response_model=MessagesReply, responses=told)
    async def messages(body: MessagesRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """An answer to a conversation, whole or as server-sent events."""
        _check(body)
        answering, decoding, chat = await prepared(models, body.chat(), request, joins=True)
        writer = MessagesWriter(body, chat, headers=_said(request))
        return await reply_with(writer, decoding, answering, request, stream=bool(body.stream))

    @router.post("/messages/count_tokens")
    async def count_tokens(body: CountRequest, request: Request, reply: Response) -> CountReply:  # pyright: ignore[reportUnusedFunction]
        """How many tokens a conversation's prompt has."""
        _check(body)
        names = [*ignored(body), *body.ignored, *_said(request)]
        reply.headers.update(said(names) or {})
        answering = models.asked(body.model)
        policy_for(answering, body.model)
        # What is counted needs no grammar.
        asked = replace(unread(answering, body.chat()), form=None)
        ready = await queued(answering, request, lambda: answering.read(asked))
        return CountReply(input_tokens=len(ready.prompt.ids))

    return router


def _check(body: CountRequest | MessagesRequest) -> None:
    """Raises `ApiError` for a conversation that ends with an answer."""
    if body.messages[-1].role == "assistant":
        message = "An answer cannot be begun for the model; let the last message be the user's."
        raise ApiError(400, message, param="messages")


def _said(request: Request) -> list[str]:
    """Headers that change nothing."""
    told = ["anthropic-beta"] if request.headers.get("anthropic-beta") else []
    version = request.headers.get(VERSION_HEADER)
    return told if version is None or version in VERSIONS else [*told, VERSION_HEADER]


class MessagesWriter(Writer):
    """Translates a chat's reply."""

    end, named = None, True

    def __init__(
        self, request: MessagesRequest, chat: ChatReply, *, headers: Sequence[str] = ()
    ) -> None:
        """`headers` of the request that change nothing are said as well."""
        self.ignored = [*ignored(request), *request.ignored, *headers]
        self._chat = chat
        self._most = request.max_tokens
        self.id = f"msg_{secrets.token_hex(12)}"
        self._head = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": request.model,
        }
        self._prompt = 0
        self._index = -1
        self._block: Literal["text", "tool_use"] | None = None
        self._waiting: list[dict[str, Any]] = []

    async def read(self, prompt: Prompt, ticket: Ticket) -> None:
        self._prompt = len(prompt.ids)
        await self._chat.read(prompt, ticket)

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        reply = self._chat.whole(events)
        (choice,) = reply["choices"]
        message, usage = choice["message"], reply["usage"]
        text = message["content"]
        calls = map(_tool_use, message.get("tool_calls") or ())
        told = {
            **self._head,
            "content": [*([{"type": "text", "text": text}] if text else []), *filter(None, calls)],
            **self._stopped(choice, usage),
            "usage": _usage(usage),
        }
        return {**told, "edgewise": reply["edgewise"]} if "edgewise" in reply else told

    async def chunks(self, events: AsyncGenerator[Event]) -> AsyncGenerator[dict[str, Any]]:
        # What the cache had of the prompt is known at the end.
        usage = {"input_tokens": self._prompt, "output_tokens": 0}
        empty = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": {**self._head, **empty}}
        last: dict[str, Any] = {}
        async with aclosing(self._chat.chunks(events)) as chunks:
            async for chunk in chunks:
                for last in chunk["choices"]:
                    own = {"edgewise": chunk["edgewise"]} if "edgewise" in chunk else {}
                    for event in self._pieces(last, own):
                        yield event
                if not chunk["choices"]:
                    for event in self._closing(last, chunk["usage"]):
                        yield event

    def failed(self, error: ApiError) -> dict[str, Any]:
        return anthropic_body(error)

    def _pieces(self, choice: dict[str, Any], own: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Events for a chunk of the chat's; `own` stands beside what there is."""
        for call in choice["delta"].get("tool_calls") or ():
            if "id" in call:
                used = {"id": call["id"], "name": call["function"]["name"], "input": {}}
                yield from self._opened("tool_use", **used)
            if arguments := call["function"]["arguments"]:
                yield from self._grown(arguments, own)
                own = {}
        if text := choice["delta"].get("content") or "":
            if self._block != "text":
                yield from self._opened("text", text="")
            yield from self._grown(text, own)
            own = {}
        self._waiting += [own] if own else []
        if self._block is not None:
            yield from self._told_of_nothing()

    def _opened(self, kind: Literal["text", "tool_use"], **more: Any) -> Iterator[dict[str, Any]]:
        """Another block, behind the end of the one before."""
        yield from self._closed()
        self._index, self._block = self._index + 1, kind
        block = {"type": kind, **more}
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _grown(self, more: str, own: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """More of the last block."""
        yield from self._told_of_nothing()
        delta = (
            {"type": "text_delta", "text": more}
            if self._block == "text"
            else {"type": "input_json_delta", "partial_json": more}
        )
        yield {"type": "content_block_delta", "index": self._index, "delta": delta, **own}

    def _told_of_nothing(self) -> Iterator[dict[str, Any]]:
        """What has to be said of tokens that added nothing, such as a call's opening."""
        waiting, self._waiting = self._waiting, []
        for own in waiting:
            yield from self._grown("", own)

    def _closed(self) -> Iterator[dict[str, Any]]:
        if self._block is not None:
            yield {"type": "content_block_stop", "index": self._index}

    def _closing(self, last: dict[str, Any], usage: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._waiting:
            yield from self._opened("text", text="")
            yield from self._told_of_nothing()
        yield from self._closed()
        stopped = self._stopped(last, usage)
        yield {"type": "message_delta", "delta": stopped, "usage": _usage(usage)}
        yield {"type": "message_stop"}

    def _stopped(self, choice: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
        """Why it ended, from a chat's choice."""
        stop: str | None = choice["stop_reason"]
        if choice["finish_reason"] == "length":
            full = usage["completion_tokens"] < self._most
            reason = "model_context_window_exceeded" if full else "max_tokens"
        elif choice["finish_reason"] == "tool_calls":
            reason = "tool_use"
        else:
            reason = "end_turn" if stop is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop if reason == "stop_sequence" else None}


def _tool_use(call: dict[str, Any]) -> dict[str, Any] | None:
    """A call of the chat's; None for one that was cut in the middle of its arguments."""
    try:
        given: Any = msgspec.json.decode(call["function"]["arguments"])
    except msgspec.DecodeError:
        return None
    name = call["function"]["name"]
    return {"type": "tool_use", "id": call["id"], "name": name, "input": given}


def _usage(chat: dict[str, Any]) -> dict[str, Any]:
    cached = chat["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": chat["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": chat["completion_tokens"],
        "edgewise": chat["edgewise"],
    }
