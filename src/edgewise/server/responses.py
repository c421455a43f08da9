"""`POST /v1/responses`: a chat in the terms of OpenAI's newer API, with its typed events."""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, Field, Tag

from edgewise.events import Finished
from edgewise.grammar.calls import CallBegun
from edgewise.grammar.response_format import MAX_TOOLS, ResponseFormat
from edgewise.prompts import ToolCall
from edgewise.server.chat import FunctionCall, answered
from edgewise.server.errors import ApiError
from edgewise.server.guards import JsonRoute
from edgewise.server.replies import EventWriter, UsageCounts
from edgewise.server.requests import (
    MAX_MESSAGES,
    BoundedText,
    CallId,
    ChatTurn,
    ConversationAnswerRequest,
    FunctionDefinition,
    Name,
    PlainFormat,
    Skipped,
    Strict,
    Texts,
    TokenLimit,
    TopLogprobs,
    TypedJsonSchema,
    by_type,
    few_parts,
    form_of,
    refused,
    turn,
)

LOGPROBS = "message.output_text.logprobs"
"""The one value of `include` that is honoured."""


class InputMessage(Strict):
    """A turn; an answer's comes back with its id and status."""

    ignores = frozenset({"id", "status", "phase"})
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Texts


class CallItem(FunctionCall):
    """A call that an earlier answer made."""

    ignores = frozenset({"id", "status"})
    type: Literal["function_call"]
    call_id: CallId


class OutputItem(Strict):
    """The result of a call."""

    ignores = frozenset({"id", "status"})
    type: Literal["function_call_output"]
    call_id: CallId
    output: Texts


InputItem = Annotated[
    Annotated[InputMessage, Tag("(message)")]
    | Annotated[CallItem, Tag("(function_call)")]
    | Annotated[OutputItem, Tag("(function_call_output)")]
    | Annotated[Skipped, Tag("(reasoning)")],
    by_type("message"),
]


class ResponsesTool(FunctionDefinition):
    """A function that the answer may call."""

    type: Literal["function"]


AnyTool = Annotated[
    Annotated[ResponsesTool, Tag("(function)")] | Annotated[Skipped, Tag("(other)")],
    by_type("function", others=True),
]


class ResponsesToolName(Strict):
    """The tool that has to be called."""

    type: Literal["function"]
    name: Name


class TextOptions(Strict):
    """How the answer is written."""

    ignores = frozenset({"verbosity"})
    format: Annotated[PlainFormat | TypedJsonSchema, Field(discriminator="type")] | None = None


class ResponsesRequest(ConversationAnswerRequest):
    """`POST /v1/responses`. Nothing is stored: a conversation comes whole, in `input`."""

    # Nothing is stored, billed by tier, screened or cached by a key; the rest are hints and limits
    # that are never reached.
    ignores = frozenset(
        {
            *("store", "client_metadata", "service_tier", "safety_identifier", "user"),
            *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
            *("reasoning", "max_tool_calls"),
        }
    )
    input: Annotated[
        BoundedText | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)],
        BeforeValidator(few_parts),
    ]
    instructions: BoundedText | None = None
    max_output_tokens: TokenLimit | None = None
    top_logprobs: TopLogprobs | None = None
    text: TextOptions | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolName | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    previous_response_id: Annotated[
        None, refused("answers are not kept here; send the whole conversation as input")
    ] = None
    conversation: Annotated[
        None, refused("conversations are not kept here; send the whole one as input")
    ] = None
    prompt: Annotated[None, refused("there are no stored prompts here; send its text")] = None
    include: Annotated[list[str] | None, Field(max_length=100)] = None
    metadata: Annotated[dict[str, str] | None, Field(max_length=16)] = None

    def ignored_names(self) -> list[str]:
        others = set(self.include or ()) - {LOGPROBS}
        return [*super().ignored_names(), *(["include"] if others else [])]

    @property
    def most(self) -> int | None:
        return self.max_output_tokens

    @property
    def candidates(self) -> int | None:
        asked = LOGPROBS in (self.include or ()) or self.top_logprobs
        return (self.top_logprobs or 0) if asked else None

    def turns(self) -> list[ChatTurn]:
        turns = [turn("system", self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*turns, turn("user", self.input)]
        for item in self.input:
            if isinstance(item, InputMessage):
                turns.append(turn(item.role, item.content))
            elif isinstance(item, CallItem):
                call = ToolCall(item.call_id, item.name, item.arguments)
                turns.append(turn("assistant", None, calls=[call]))
            elif isinstance(item, OutputItem):
                turns.append(turn("tool", item.output, call_id=item.call_id))
        return turns

    def form(self) -> ResponseFormat | None:
        tools = [tool for tool in self.tools or () if isinstance(tool, ResponsesTool)]
        if tools and self.candidates is not None:
            raise ApiError(400, "Logprobs are those of text; leave them or the tools out.")
        choice = self.tool_choice
        return form_of(
            self.text and self.text.format,
            tools,
            choice if isinstance(choice, str) else None,
            only=choice.name if isinstance(choice, ResponsesToolName) else None,
            parallel=self.parallel_tool_calls,
        )


router = APIRouter(route_class=JsonRoute)


@router.post("/v1/responses")
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """An answer to a conversation, whole or as server-sent events. Nothing is stored."""
    return await answered(body, request, ResponsesWriter, joins=True)


_Named = tuple[str, dict[str, Any]]
"""An event's name behind `response.`, and its fields."""


class _Item:
    """An item of the output, the `index`th: a message, or a call."""

    def __init__(self, index: int, call: CallBegun | None = None) -> None:
        self.index, self.call = index, call
        self.id = f"{'msg' if call is None else 'fc'}_{secrets.token_hex(24)}"
        self._pieces: list[str] = []
        self._logprobs: list[Any] = []

    def add(self, text: str, logprobs: Sequence[Any] = ()) -> _Named:
        """More of its text or arguments."""
        self._pieces.append(text)
        self._logprobs += logprobs
        if self.call is not None:
            return "function_call_arguments.delta", {**self._place, "delta": text}
        more = {"delta": text, "logprobs": list(logprobs)}
        return "output_text.delta", {**self._place, **more}

    def whole(self, status: str) -> dict[str, Any]:
        """The item so far."""
        head = {"id": self.id, "status": status}
        if self.call is None:
            return {"type": "message", "role": "assistant", **head, "content": [self._part]}
        call = {"call_id": self.call.id, "name": self.call.name, "arguments": self._text}
        return {"type": "function_call", **head, **call}

    def opened(self) -> Iterator[_Named]:
        """The events of its beginning."""
        empty: dict[str, Any] = {"content": []} if self.call is None else {}
        item = self.whole("in_progress") | empty
        yield "output_item.added", {"output_index": self.index, "item": item}
        if self.call is None:
            yield "content_part.added", {**self._place, "part": self._part}

    def closed(self, status: str) -> Iterator[_Named]:
        """The events of its end."""
        if self.call is None:
            part = self._part
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            yield "output_text.done", {**self._place, **text}
            yield "content_part.done", {**self._place, "part": part}
        else:
            done = {"name": self.call.name, "arguments": self._text}
            yield "function_call_arguments.done", {**self._place, **done}
        yield "output_item.done", {"output_index": self.index, "item": self.whole(status)}

    @property
    def _place(self) -> dict[str, Any]:
        content = {"content_index": 0} if self.call is None else {}
        return {"item_id": self.id, "output_index": self.index, **content}

    @property
    def _part(self) -> dict[str, Any]:
        logprobs = list(self._logprobs)
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": logprobs}

    @property
    def _text(self) -> str:
        return "".join(self._pieces)


class ResponsesWriter(EventWriter):
    """A response, or its events."""

    request: ResponsesRequest
    always_text = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._id, self._created = f"resp_{secrets.token_hex(24)}", int(time.time())
        self._number = -1
        self._items: list[_Item] = []

    def failed(self, error: ApiError) -> dict[str, Any]:
        fields = {"code": error.code or "server_error", "message": str(error)}
        return self._event("failed", {"response": {**self._response("failed"), "error": fields}})

    def first(self) -> Iterator[dict[str, Any]]:
        for kind in ("created", "in_progress"):
            yield self._event(kind, {"response": self._response("in_progress")})

    def opened(self, call: CallBegun | None = None) -> Iterator[dict[str, Any]]:
        yield from self._closed("completed")
        self._items.append(_Item(len(self._items), call))
        yield from (self._event(*event) for event in self._items[-1].opened())

    def grown(self, more: str, logprobs: Sequence[Any]) -> dict[str, Any]:
        return self._event(*self._items[-1].add(more, logprobs))

    def ended(self, end: Finished) -> Iterator[dict[str, Any]]:
        response = self.reply([], end)
        yield from self._closed(response["status"])
        yield self._event(response["status"], {"response": response})

    def reply(self, chunks: Sequence[dict[str, Any]], end: Finished) -> dict[str, Any]:
        cut = end.finish_reason == "length"
        status = "incomplete" if cut else "completed"
        last = len(self._items) - 1
        output = [one.whole(status if one.index == last else "completed") for one in self._items]
        return {
            **self._response(status),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": output,
            "usage": _usage(end),
        }

    def _closed(self, status: str) -> Iterator[dict[str, Any]]:
        for item in self._items[-1:]:
            yield from (self._event(*event) for event in item.closed(status))

    def _event(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number, **fields}

    def _response(self, status: str) -> dict[str, Any]:
        """The request's fields, and no answer yet."""
        asked = self.request
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
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": _plain(asked.text and asked.text.format) or {"type": "text"}},
            "tool_choice": _plain(asked.tool_choice) or "auto",
            "tools": [_plain(tool) for tool in asked.tools or ()],
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _plain(asked: BaseModel | str | None) -> Any:
    """A part of the request, as it came."""
    if isinstance(asked, BaseModel):
        return asked.model_dump(by_alias=True, exclude_none=True)
    return asked


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
