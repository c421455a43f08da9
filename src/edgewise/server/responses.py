"""The endpoint `/v1/responses`: chat in OpenAI's newer API, with typed events."""

import secrets
import time
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BeforeValidator, Field, Tag

from edgewise.events import Finished
from edgewise.grammar.response_format import ResponseFormat
from edgewise.prompts import ToolCall
from edgewise.server.chat import FunctionCall, answered
from edgewise.server.errors import ApiError
from edgewise.server.replies import EventWriter, Item, UsageCounts
from edgewise.server.requests import (
    AnyPlainFormat,
    BoundedText,
    CallId,
    ChatTurn,
    CloudOptions,
    ConversationAnswerRequest,
    EdgewiseOptions,
    FunctionDefinition,
    IgnoredObject,
    JsonRoute,
    RoleTurn,
    Strict,
    Texts,
    TokenLimit,
    Tools,
    Turns,
    TypedJsonSchema,
    by_type,
    limit_parts,
    max_entries,
    response_format_of,
    turn,
)


class InputMessage(RoleTurn):
    """A message of the conversation; `id` and `status`, which answers have, are ignored."""

    ignores = frozenset({"id", "status", "phase"})
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Texts


class CallItem(FunctionCall):
    """A tool call in an earlier answer."""

    type: Literal["function_call"]
    call_id: CallId


class OutputItem(Strict):
    """The result of a tool call."""

    ignores = frozenset({"id", "status", "created_by"})
    type: Literal["function_call_output"]
    call_id: CallId
    output: Texts


InputItem = Annotated[
    Annotated[InputMessage, Tag("(message)")]
    | Annotated[CallItem, Tag("(function_call)")]
    | Annotated[OutputItem, Tag("(function_call_output)")]
    | Annotated[IgnoredObject, Tag("(reasoning)")],
    by_type("message"),
]


class ResponsesTool(FunctionDefinition):
    """A function that the answer may call; as `tool_choice`, the one that it has to call."""

    type: Literal["function"]


AnyTool = Annotated[
    Annotated[ResponsesTool, Tag("(function)")] | Annotated[IgnoredObject, Tag("(other)")],
    by_type("function", others=True),
]


class TextOptions(Strict):
    """Options of the answer's form: `format` is plain text, any JSON object, or a JSON schema."""

    ignores = frozenset({"verbosity"})
    format: (
        Annotated[AnyPlainFormat | Annotated[TypedJsonSchema, Tag("(json_schema)")], by_type()]
        | None
    ) = None


class ResponsesRequest(ConversationAnswerRequest):
    """The body of `POST /v1/responses`. Nothing is stored: `input` has the whole conversation."""

    # Nothing is stored, billed by tier, screened or cached by a key; the rest are hints and limits
    # that are never reached.
    ignores = frozenset(
        {
            *("store", "client_metadata", "service_tier", "safety_identifier", "user"),
            *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
            *("reasoning", "max_tool_calls", "include"),
        }
    )
    edgewise: CloudOptions = EdgewiseOptions()
    input: Annotated[BoundedText | Turns[InputItem], BeforeValidator(limit_parts)]
    instructions: BoundedText | None = None
    max_tokens: TokenLimit | None = Field(default=None, alias="max_output_tokens")
    text: TextOptions | None = None
    tools: Tools[AnyTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesTool | None = None
    parallel_tool_calls: bool | None = None
    metadata: Annotated[dict[str, str] | None, max_entries(16)] = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None

    def turns(self) -> list[ChatTurn]:
        turns = [turn("system", self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*turns, turn("user", self.input)]
        for item in self.input:
            if isinstance(item, InputMessage):
                local = item.edgewise is not None
                turns.append(turn(item.role, item.content, local=local))
            elif isinstance(item, CallItem):
                call = ToolCall(item.call_id, item.name, item.arguments)
                turns.append(turn("assistant", None, calls=[call]))
            elif isinstance(item, OutputItem):
                turns.append(turn("tool", item.output, call_id=item.call_id))
        return turns

    def answer_format(self) -> ResponseFormat | None:
        choice = self.tool_choice
        return response_format_of(
            self.text and self.text.format,
            [tool for tool in self.tools or () if isinstance(tool, ResponsesTool)],
            choice if isinstance(choice, str) else None,
            only=choice.name if isinstance(choice, ResponsesTool) else None,
            parallel=self.parallel_tool_calls,
        )


router = APIRouter(route_class=JsonRoute)


@router.post("/v1/responses")
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Return an answer to a conversation, whole or as server-sent events. Nothing is stored."""
    return await answered(body, request, ResponsesWriter, joins=True)


# The fields of a response that has no answer yet. Values in the request replace them.
_DEFAULTS: dict[str, Any] = {
    "error": None,
    "incomplete_details": None,
    "metadata": {},
    "output": [],
    "parallel_tool_calls": True,
    "store": False,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "usage": None,
}


class ResponsesWriter(EventWriter):
    """Writes the reply of `/v1/responses`: a response object, or the events of its stream."""

    _number = -1

    @cached_property
    def _head(self) -> dict[str, Any]:
        # Nothing is stored, whatever the request says of it.
        echoed = self.request.model_dump(
            include=set(_DEFAULTS), by_alias=True, exclude_none=True, exclude={"store"}
        )
        return {
            "id": f"resp_{secrets.token_hex(24)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": self.request.model,
            **_DEFAULTS,
            **echoed,
        }

    def failed(self, error: ApiError) -> dict[str, Any]:
        fields = {"code": error.code or "server_error", "message": str(error)}
        return self._event("failed", response={**self._head, "status": "failed", "error": fields})

    def begun(self) -> Iterator[dict[str, Any]]:
        for kind in ("created", "in_progress"):
            yield self._event(kind, response={**self._head, "status": "in_progress"})

    def opened(self, item: Item) -> Iterator[dict[str, Any]]:
        whole = self._whole(item, "in_progress")
        empty = whole if item.call else {**whole, "content": []}
        yield self._event("output_item.added", output_index=item.index, item=empty)
        if item.call is None:
            yield self._event("content_part.added", **_place(item), part=_text(item))

    def grown(self, item: Item, more: str) -> dict[str, Any]:
        if item.call is not None:
            return self._event("function_call_arguments.delta", **_place(item), delta=more)
        return self._event("output_text.delta", **_place(item), delta=more, logprobs=[])

    def closed(self, item: Item, end: Finished | None) -> Iterator[dict[str, Any]]:
        place = _place(item)
        if item.call is None:
            yield self._event("output_text.done", **place, text=item.text, logprobs=[])
            yield self._event("content_part.done", **place, part=_text(item))
        else:
            called = {"name": item.call.name, "arguments": item.text}
            yield self._event("function_call_arguments.done", **place, **called)
        whole = self._whole(item, _status(end))
        yield self._event("output_item.done", output_index=item.index, item=whole)

    def ended(self, end: Finished) -> Iterator[dict[str, Any]]:
        yield self._event(_status(end), response=self.reply(end))

    def reply(self, end: Finished) -> dict[str, Any]:
        *before, last = self.items
        status = _status(end)
        output = [*(self._whole(item, "completed") for item in before), self._whole(last, status)]
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._head,
            "status": status,
            "incomplete_details": cut,
            "output": output,
            "usage": _usage(end),
        }

    def _whole(self, item: Item, status: str) -> dict[str, Any]:
        """Return the item as it is written so far."""
        head = {"id": _id(item), "status": status}
        if item.call is None:
            said = {"content": [_text(item)], **self.mark}
            return {"type": "message", "role": "assistant", **head, **said}
        call = {"call_id": item.call.id, "name": item.call.name, "arguments": item.text}
        return {"type": "function_call", **head, **call}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number, **fields}


def _status(end: Finished | None) -> str:
    return "incomplete" if end is not None and end.finish_reason == "length" else "completed"


def _place(item: Item) -> dict[str, Any]:
    place = {"item_id": _id(item), "output_index": item.index}
    return place if item.call else {**place, "content_index": 0}


def _id(item: Item) -> str:
    return f"fc_{item.id}" if item.call else f"msg_{item.id}"


def _text(item: Item) -> dict[str, Any]:
    return {"type": "output_text", "text": item.text, "annotations": [], "logprobs": []}


def _usage(end: Finished) -> dict[str, Any]:
    counts = UsageCounts(end.usage)
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.prompt + counts.written,
        "edgewise": counts.own,
    }
