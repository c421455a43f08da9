"""The endpoints of Anthropic's API: `/v1/messages`, with typed events, and the token count."""

import secrets
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, Tag

from edgewise.events import Finished
from edgewise.grammar.calls import CallBegun
from edgewise.grammar.response_format import ResponseFormat
from edgewise.prompts import ToolCall
from edgewise.server.chat import answered, joined_turns, prompt_reader
from edgewise.server.errors import ApiError, anthropic_body
from edgewise.server.models import marked, pair_of, policy_for
from edgewise.server.replies import EventWriter, Item, UsageCounts, admitted, unless_gone
from edgewise.server.requests import (
    MAX_MESSAGES,
    Arguments,
    BoundedText,
    CallId,
    ChatTurn,
    CloudOptions,
    ConversationAnswerRequest,
    ConversationRequest,
    EdgewiseOptions,
    FunctionDefinition,
    IgnoredObject,
    JsonRoute,
    Name,
    Returned,
    RoleTurn,
    Stop,
    Strict,
    TextPart,
    Texts,
    TokenLimit,
    Tools,
    Turns,
    TypedJsonSchema,
    by_type,
    ignored,
    ignored_header,
    response_format_of,
    turn,
)


class ToolUse(Returned):
    """A tool call in an earlier answer."""

    type: Literal["tool_use"]
    id: CallId
    name: Annotated[str, Field(min_length=1, max_length=200)]
    input: Arguments


class ToolResult(Strict):
    """The result of a tool call."""

    ignores = frozenset({"cache_control", "is_error"})
    type: Literal["tool_result"]
    tool_use_id: CallId
    content: Texts | None = None


Block = Annotated[
    Annotated[TextPart, Tag("(text)")]
    | Annotated[ToolUse, Tag("(tool_use)")]
    | Annotated[ToolResult, Tag("(tool_result)")]
    | Annotated[IgnoredObject, Tag("(thinking)")],
    by_type(),
]


class AnthropicTurn(RoleTurn):
    """A message of `/v1/messages`: a text, or a list of content blocks."""

    # Newer clients send `system` messages between the others, too.
    role: Literal["user", "assistant", "system"]
    content: BoundedText | Annotated[list[Block], Field(max_length=MAX_MESSAGES)]

    def turns(self) -> Iterator[ChatTurn]:
        """Yield a `ChatTurn` for each tool result, then one for text and tool calls, if any."""
        blocks = [] if isinstance(self.content, str) else self.content
        local = self.edgewise is not None
        results = [block for block in blocks if isinstance(block, ToolResult)]
        for block in results:
            yield _turn("tool", block.content, call_id=block.tool_use_id, local=local)
        calls = [
            ToolCall(block.id, block.name, block.input)
            for block in blocks
            if isinstance(block, ToolUse)
        ]
        said = calls or not blocks or any(isinstance(block, TextPart) for block in blocks)
        # Of reasoning alone nothing is kept but the mark, which holds for all that follows.
        if said or (local and not results):
            yield _turn(self.role, self.content, calls=calls, local=local)


_turn = partial(turn, between="\n\n")


class AnthropicTool(FunctionDefinition):
    """A tool that the answer may call; `parameters` is the JSON schema `input_schema`."""

    ignores = frozenset(
        {
            *("cache_control", "input_examples", "eager_input_streaming", "defer_loading"),
            "allowed_callers",
        }
    )
    type: Literal["custom"] | None = None
    # Unlike in OpenAI's APIs they are required.
    parameters: Annotated[dict[str, Any] | None, Field(alias="input_schema")]  # pyright: ignore[reportGeneralTypeIssues]


AnyTool = Annotated[
    Annotated[AnthropicTool, Tag("(custom)")] | Annotated[IgnoredObject, Tag("(other)")],
    by_type("custom", others=True),
]


class AnthropicToolChoice(Strict):
    """Which tools the answer may call or, with `any` or `tool` (the tool `name`), has to call."""

    type: Literal["none", "auto", "any", "tool"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Strict):
    """Options of the answer's form: `format`, a JSON schema that it follows (None: plain text)."""

    ignores = frozenset({"effort"})
    format: TypedJsonSchema | None = None


class ContextEdit(IgnoredObject):
    """An edit of the conversation that clears reasoning: it is ignored; other types are refused."""

    type: Annotated[str, Field(pattern=r"^clear_thinking_\d+$", max_length=100)]


class ContextManagement(Strict):
    """Edits of a long conversation; only those that clear reasoning are accepted, and ignored."""

    edits: Annotated[list[ContextEdit], Field(max_length=10)] | None = None


# A line for billing, which Claude Code sends first in its system prompt, begins so. It differs in
# each request, so nothing behind it could be reused from the KV cache.
_BILLING = "x-anthropic-billing-header:"


def _lasting(system: Texts | None) -> Texts | None:
    """Return the system prompt without its line, or text blocks, for billing (see `_BILLING`)."""
    if isinstance(system, str):
        return system.partition("\n")[2] if system.startswith(_BILLING) else system
    return system and [
        one for one in system if isinstance(one, IgnoredObject) or not one.text.startswith(_BILLING)
    ]


class CountRequest(ConversationRequest):
    """The body of `POST /v1/messages/count_tokens`."""

    # The KV cache keeps what it can by itself, and no reasoning is kept apart.
    ignores = frozenset({"cache_control", "thinking", "speed", "user_profile_id", "workspace_id"})
    edgewise: CloudOptions = EdgewiseOptions()
    messages: Turns[AnthropicTurn]
    system: Texts | None = None
    tools: Tools[AnyTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None

    def turns(self) -> list[ChatTurn]:
        system = [_turn("system", kept)] if (kept := _lasting(self.system)) else []
        return system + [one for turn in self.messages for one in turn.turns()]

    def answer_format(self) -> ResponseFormat | None:
        if self.messages[-1].role == "assistant":
            message = "Prefill is not supported; the last message must be the user's."
            raise ApiError(400, message, param="messages")
        choice = self.tool_choice or AnthropicToolChoice(type="auto")
        if choice.type == "tool" and choice.name is None:
            raise ApiError(400, "tool_choice needs a name.", param="tool_choice")
        return response_format_of(
            self.output_config and self.output_config.format,
            [tool for tool in self.tools or () if isinstance(tool, AnthropicTool)],
            "required" if choice.type == "any" else choice.type,
            only=choice.name if choice.type == "tool" else None,
            parallel=not choice.disable_parallel_tool_use,
        )


class MessagesRequest(CountRequest, ConversationAnswerRequest):
    """The body of `POST /v1/messages`."""

    ignores = CountRequest.ignores | {"metadata", "service_tier", "inference_geo", "diagnostics"}
    # Unlike in OpenAI's APIs it is required.
    max_tokens: TokenLimit  # pyright: ignore
    stop: Stop = Field(default=None, alias="stop_sequences")


router = APIRouter(route_class=JsonRoute)


@router.post("/v1/messages")
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Return an answer to a conversation, whole or, with `stream`, as server-sent events."""
    return await answered(body, request, MessagesWriter, joins=True)


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountRequest, request: Request, reply: Response) -> dict[str, int]:
    """Return how many tokens a conversation's prompt has, by the edge model's tokenizer."""
    reply.headers.update(ignored_header(ignored(body)) or {})
    answering = pair_of(request)
    # Sent next without the mark, for an answer, local messages stay local.
    turns = joined_turns(await marked(request, body.edgewise, body.turns()))
    policy_for(answering, body.model)
    read = prompt_reader(answering, turns, body.answer_format())
    async with admitted(request):
        prompt = await unless_gone(request, answering.read(read))
    return {"input_tokens": len(prompt.ids)}


class MessagesWriter(EventWriter):
    """Writes the reply of `/v1/messages`: a message, or the events of its stream."""

    request: MessagesRequest

    @cached_property
    def _head(self) -> dict[str, Any]:
        head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        return {**head, "model": self.request.model, **self.mark}

    def failed(self, error: ApiError) -> dict[str, Any]:
        return anthropic_body(error)

    def reply(self, end: Finished) -> dict[str, Any]:
        return {
            **self._head,
            "content": [block for item in self.items for block in _blocks(item)],
            **self._stopped(end),
            "usage": _usage(end),
        }

    def begun(self) -> Iterator[dict[str, Any]]:
        # How much of the prompt was cached is known at the end.
        usage = {"input_tokens": len(self.prompt_ids), "output_tokens": 0}
        empty = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": {**self._head, **empty}}

    def opened(self, item: Item) -> Iterator[dict[str, Any]]:
        block = {"type": "text", "text": ""} if item.call is None else _tool_use(item.call, {})
        yield {"type": "content_block_start", "index": item.index, "content_block": block}

    def grown(self, item: Item, more: str) -> dict[str, Any]:
        delta = {"type": "text_delta", "text": more}
        if item.call is not None:
            delta = {"type": "input_json_delta", "partial_json": more}
        return {"type": "content_block_delta", "index": item.index, "delta": delta}

    def closed(self, item: Item, end: Finished | None) -> Iterator[dict[str, Any]]:
        yield {"type": "content_block_stop", "index": item.index}

    def ended(self, end: Finished) -> Iterator[dict[str, Any]]:
        yield {"type": "message_delta", "delta": self._stopped(end), "usage": _usage(end)}
        yield {"type": "message_stop"}

    def _stopped(self, end: Finished) -> dict[str, Any]:
        """Return the fields that say why the answer ended."""
        kind, written = self.finish_reason(end), end.usage.edge_tokens + end.usage.cloud_tokens
        if kind == "length":
            # Others are cut by the cloud's own limit, or since they repeat themselves.
            full = self.context - len(self.prompt_ids) < written < self.request.max_tokens
            reason = "model_context_window_exceeded" if full else "max_tokens"
        elif kind == "tool_calls":
            reason = "tool_use"
        else:
            reason = "end_turn" if end.stop is None else "stop_sequence"
        return {
            "stop_reason": reason,
            "stop_sequence": end.stop if reason == "stop_sequence" else None,
        }


def _blocks(item: Item) -> Iterator[dict[str, Any]]:
    """Yield the content block of an item, unless it is empty or an incomplete call."""
    if item.call is None and item.text:
        yield {"type": "text", "text": item.text}
    elif item.call is not None:
        # A call that was cut in the middle of its arguments is invalid.
        with suppress(msgspec.DecodeError):
            yield _tool_use(item.call, msgspec.json.decode(item.text))


def _tool_use(call: CallBegun, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _usage(end: Finished) -> dict[str, Any]:
    counts = UsageCounts(end.usage)
    return {
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.written,
        "edgewise": counts.own,
    }
