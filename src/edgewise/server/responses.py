"""`POST /v1/responses`: a chat in the terms of OpenAI's newer API, with its typed events."""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from edgewise.events import Event
from edgewise.grammar.response_format import MAX_TOOLS
from edgewise.server.chat import (
    ChatReply,
    Translator,
    call_of,
    function_tool,
    json_format,
    logprobs_of,
    named_tool,
    prepared,
)
from edgewise.server.errors import ApiError
from edgewise.server.guards import JsonRoute
from edgewise.server.models import Models
from edgewise.server.requests import (
    MAX_MESSAGES,
    BoundedText,
    CallId,
    ChatMessage,
    ChatRequest,
    EdgewiseOptions,
    FunctionCall,
    FunctionDefinition,
    JsonObjectFormat,
    JsonSchemaText,
    ModelName,
    Name,
    OtherTool,
    StreamOptions,
    Strict,
    Temperature,
    TextFormat,
    TokenLimit,
    TopLogprobs,
    TopP,
    few_parts,
    ignored,
    refused,
    text_parts,
)
from edgewise.server.streaming import described, reply_with

LOGPROBS = "message.output_text.logprobs"
"""The one value of `include` that is honoured."""


class InputText(Strict):
    """A part of a message; only text can be read. An answer's parts come back as they were."""

    ignores = frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"})
    type: Literal["input_text", "output_text", "text"]
    text: BoundedText


Texts = BoundedText | Annotated[list[InputText], Field(max_length=MAX_MESSAGES)]


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


class ReasoningItem(Strict):
    """Another model's reasoning, which is ignored."""

    ignores = frozenset({"id", "summary", "content", "encrypted_content", "status"})
    type: Literal["reasoning"]

    def ignored_names(self) -> list[str]:
        return ["reasoning"]


def _kind(item: object) -> str:
    """An item without a type is a message."""
    if isinstance(item, dict):
        return f"({cast(dict[str, Any], item).get('type', 'message')})"
    return f"({getattr(item, 'type', '')})"


InputItem = Annotated[
    Annotated[InputMessage, Tag("(message)")]
    | Annotated[CallItem, Tag("(function_call)")]
    | Annotated[OutputItem, Tag("(function_call_output)")]
    | Annotated[ReasoningItem, Tag("(reasoning)")],
    Discriminator(_kind),
]


class ResponsesTool(FunctionDefinition):
    """A function that the answer may call."""

    type: Literal["function"]


def _kind_of_tool(tool: object) -> str:
    given = cast(dict[str, Any], tool) if isinstance(tool, dict) else {}
    found = given.get("type", getattr(tool, "type", ""))
    return "(function)" if found == "function" else "(other)"


AnyTool = Annotated[
    Annotated[ResponsesTool, Tag("(function)")] | Annotated[OtherTool, Tag("(other)")],
    Discriminator(_kind_of_tool),
]


class ResponsesToolName(Strict):
    """The tool that has to be called."""

    type: Literal["function"]
    name: Name


class ResponsesJsonSchema(JsonSchemaText):
    """Answers are JSON that a schema allows."""

    type: Literal["json_schema"]


class TextOptions(Strict):
    """How the answer is written."""

    ignores = frozenset({"verbosity"})
    format: (
        Annotated[TextFormat | JsonObjectFormat | ResponsesJsonSchema, Field(discriminator="type")]
        | None
    ) = None


class ResponsesRequest(Strict):
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
    model: ModelName
    input: Annotated[
        BoundedText | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)],
        BeforeValidator(few_parts),
    ]
    instructions: BoundedText | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: TokenLimit | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
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
    edgewise: EdgewiseOptions = EdgewiseOptions()

    def ignored_names(self) -> list[str]:
        others = set(self.include or ()) - {LOGPROBS}
        return [*super().ignored_names(), *(["include"] if others else [])]

    def chat(self) -> ChatRequest:
        """The same as a chat. Raises `ApiError`."""
        tools = [
            function_tool(one.name, one.description, one.parameters, one.strict)
            for one in self.tools or ()
            if isinstance(one, ResponsesTool)
        ]
        choice = self.tool_choice
        if isinstance(choice, ResponsesToolName):
            choice = named_tool(choice.name)
        logprobs = LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        if tools and logprobs:
            raise ApiError(400, "Logprobs are those of text; leave them or the tools out.")
        written = self.text.format if self.text else None
        if isinstance(written, ResponsesJsonSchema):
            written = json_format(written.name, written.schema_)
        return ChatRequest.model_construct(
            model=self.model,
            messages=self.turns(),
            stream=bool(self.stream),
            stream_options=StreamOptions(include_usage=True) if self.stream else None,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            logprobs=logprobs or None,
            top_logprobs=self.top_logprobs or None,
            response_format=written,
            tools=tools or None,
            # Without tools there is nothing to choose.
            tool_choice=choice if tools or choice not in ("none", "auto") else None,
            parallel_tool_calls=self.parallel_tool_calls,
            edgewise=self.edgewise,
        )

    def turns(self) -> list[ChatMessage]:
        """The same as a chat's."""
        made = ChatMessage.model_construct
        turns = [made(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*turns, made(role="user", content=self.input)]
        for item in self.input:
            if isinstance(item, InputMessage):
                turns.append(made(role=item.role, content=text_parts(item.content)))
            elif isinstance(item, CallItem):
                calls = [call_of(item.call_id, item.name, item.arguments)]
                turns.append(made(role="assistant", content="", tool_calls=calls))
            elif isinstance(item, OutputItem):
                content = text_parts(item.output)
                turns.append(made(role="tool", content=content, tool_call_id=item.call_id))
        return turns


def routes(models: Models) -> APIRouter:
    """The endpoint over the loaded pairs."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/responses", responses=described("each event is named by its type"))
    async def responses(body: ResponsesRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """An answer to a conversation, whole or as server-sent events. Nothing is stored."""
        answering, decoding, chat = await prepared(models, body, request, joins=True)
        writer = ResponsesWriter(body, chat)
        return await reply_with(writer, decoding, answering, request, stream=bool(body.stream))

    return router


_Named = tuple[str, dict[str, Any]]
"""An event's name behind `response.`, and its fields."""


class _Item:
    """An item of the output, the `index`th: a message, or a call with its `call_id` and `name`."""

    def __init__(self, index: int, call_id: str | None = None, name: str = "") -> None:
        self.index, self.call_id, self._name = index, call_id, name
        self.id = f"{'msg' if call_id is None else 'fc'}_{secrets.token_hex(24)}"
        self._pieces: list[str] = []
        self._logprobs: list[Any] = []

    def add(self, text: str, logprobs: Sequence[Any] = ()) -> _Named:
        """More of its text or arguments."""
        self._pieces.append(text)
        self._logprobs += logprobs
        if self.call_id is not None:
            return "function_call_arguments.delta", {**self._place, "delta": text}
        more = {"delta": text, "logprobs": list(logprobs)}
        return "output_text.delta", {**self._place, **more}

    def whole(self, status: str) -> dict[str, Any]:
        """The item so far."""
        head = {"id": self.id, "status": status}
        if self.call_id is None:
            return {"type": "message", "role": "assistant", **head, "content": [self._part]}
        call = {"call_id": self.call_id, "name": self._name, "arguments": "".join(self._pieces)}
        return {"type": "function_call", **head, **call}

    def opened(self) -> Iterator[_Named]:
        """The events of its beginning."""
        empty: dict[str, Any] = {"content": []} if self.call_id is None else {}
        item = self.whole("in_progress") | empty
        yield "output_item.added", {"output_index": self.index, "item": item}
        if self.call_id is None:
            yield "content_part.added", {**self._place, "part": self._part}

    def closed(self, status: str) -> Iterator[_Named]:
        """The events of its end."""
        if self.call_id is None:
            part = self._part
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            yield "output_text.done", {**self._place, **text}
            yield "content_part.done", {**self._place, "part": part}
        else:
            done = {"name": self._name, "arguments": "".join(self._pieces)}
            yield "function_call_arguments.done", {**self._place, **done}
        yield "output_item.done", {"output_index": self.index, "item": self.whole(status)}

    @property
    def _place(self) -> dict[str, Any]:
        content = {"content_index": 0} if self.call_id is None else {}
        return {"item_id": self.id, "output_index": self.index, **content}

    @property
    def _part(self) -> dict[str, Any]:
        text, logprobs = "".join(self._pieces), list(self._logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


class ResponsesWriter(Translator):
    """Translates a chat's reply."""

    always_text = True

    def __init__(self, request: ResponsesRequest, chat: ChatReply) -> None:
        super().__init__(chat)
        self.ignored = list(ignored(request))
        self._request = request
        self.id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._number = -1
        self._items: list[_Item] = []

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        reply = self.chat.whole(events)
        (choice,) = reply["choices"]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        if message["content"] or not calls:
            self._item().add(message["content"] or "", logprobs_of(choice))
        for call in calls:
            self._item(call).add(call["function"]["arguments"])
        found = self._ended(choice["finish_reason"], reply["usage"])
        return {**found, "edgewise": reply["edgewise"]} if "edgewise" in reply else found

    def failed(self, error: ApiError) -> dict[str, Any]:
        told = {"code": error.code or "server_error", "message": str(error)}
        return self._event("failed", {"response": {**self._response("failed"), "error": told}})

    def begun(self) -> Iterator[dict[str, Any]]:
        for kind in ("created", "in_progress"):
            yield self._event(kind, {"response": self._response("in_progress")})

    def opened(self, call: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        yield from self._closed("completed")
        yield from (self._event(*event) for event in self._item(call).opened())

    def grown(self, more: str, logprobs: list[Any], own: dict[str, Any]) -> dict[str, Any]:
        kind, fields = self._items[-1].add(more, logprobs)
        return self._event(kind, fields | own)

    def ended(self, choice: dict[str, Any], usage: dict[str, Any]) -> Iterator[dict[str, Any]]:
        response = self._ended(choice["finish_reason"], usage)
        yield from self._closed(response["status"])
        yield self._event(response["status"], {"response": response})

    def _closed(self, status: str) -> Iterator[dict[str, Any]]:
        for item in self._items[-1:]:
            yield from (self._event(*event) for event in item.closed(status))

    def _item(self, call: dict[str, Any] | None = None) -> _Item:
        """One more item: a call, or a message."""
        named = (call["id"], call["function"]["name"]) if call else ()
        self._items.append(_Item(len(self._items), *named))
        return self._items[-1]

    def _event(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number, **fields}

    def _ended(self, reason: str, usage: dict[str, Any]) -> dict[str, Any]:
        cut = reason == "length"
        status = "incomplete" if cut else "completed"
        last = len(self._items) - 1
        output = [one.whole(status if one.index == last else "completed") for one in self._items]
        return {
            **self._response(status),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": output,
            "usage": _usage(usage),
        }

    def _response(self, status: str) -> dict[str, Any]:
        """The request's fields, and no answer yet."""
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
