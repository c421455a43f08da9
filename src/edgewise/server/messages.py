"""`POST /v1/messages`: a chat in Anthropic's terms, with its typed events; a count of tokens."""

import secrets
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import replace
from pydantic import BeforeValidator, Discriminator, Field, Tag

from edgewise.events import Event
from edgewise.grammar.response_format import MAX_TOOLS
from edgewise.prompts import Prompt
from edgewise.server.answering import Ticket
from edgewise.server.chat import (
    ChatReply,
    Translator,
    call_of,
    function_tool,
    json_format,
    named_tool,
    prepared,
    unread,
)
from edgewise.server.errors import NO_THREADS, ApiError, anthropic_body
from edgewise.server.guards import JsonRoute
from edgewise.server.models import Models, policy_for
from edgewise.server.requests import (
    MAX_MESSAGES,
    MAX_STOPS,
    BoundedText,
    CallId,
    ChatMessage,
    ChatRequest,
    Description,
    EdgewiseOptions,
    ModelName,
    Name,
    NamedTool,
    Nothing,
    OtherTool,
    Paragraphs,
    StopText,
    StreamOptions,
    Strict,
    Temperature,
    TokenLimit,
    TopK,
    TopP,
    few_parts,
    ignored,
    ignored_header,
    text_parts,
)
from edgewise.server.streaming import described, queued, reply_with

VERSION_HEADER, VERSIONS = "anthropic-version", ("2023-06-01", "2026-10-21")
"""The versions whose clients the replies were tried with."""


class TextBlock(Strict):
    """A part of a message; only text can be read."""

    ignores = frozenset({"cache_control"})
    type: Literal["text"]
    text: BoundedText
    citations: Nothing | None = None


class ThinkingBlock(Strict):
    """A model's reasoning, which is ignored."""

    ignores = frozenset({"thinking", "signature", "data"})
    type: Literal["thinking", "redacted_thinking"]

    def ignored_names(self) -> list[str]:
        return ["thinking"]


class ToolUse(Strict):
    """A call that an earlier answer made."""

    ignores = frozenset({"cache_control", "caller"})
    type: Literal["tool_use"]
    id: CallId
    name: Annotated[str, Field(min_length=1, max_length=200)]
    input: dict[str, Any]


class ToolResult(Strict):
    """The result of a call."""

    ignores = frozenset({"cache_control", "is_error"})
    type: Literal["tool_result"]
    tool_use_id: CallId
    content: BoundedText | Annotated[list[TextBlock], Field(max_length=MAX_MESSAGES)] | None = None


def _kind(block: object) -> str:
    given = cast(dict[str, Any], block) if isinstance(block, dict) else {}
    found = given.get("type", getattr(block, "type", None))
    return "(thinking)" if found == "redacted_thinking" else f"({found})"


Block = Annotated[
    Annotated[TextBlock, Tag("(text)")]
    | Annotated[ToolUse, Tag("(tool_use)")]
    | Annotated[ToolResult, Tag("(tool_result)")]
    | Annotated[ThinkingBlock, Tag("(thinking)")],
    Discriminator(_kind),
]


class AnthropicTurn(Strict):
    """A turn. Newer clients put later instructions between the turns."""

    role: Literal["user", "assistant", "system"]
    content: BoundedText | Annotated[list[Block], Field(max_length=MAX_MESSAGES)]

    def chat(self) -> Iterator[ChatMessage]:
        """The same as a chat's turns: results of calls, the text, the calls."""
        made = Paragraphs.model_construct
        if isinstance(self.content, str):
            yield made(role=self.role, content=self.content)
            return
        for block in self.content:
            if isinstance(block, ToolResult):
                content = text_parts(block.content or "")
                yield made(role="tool", content=content, tool_call_id=block.tool_use_id)
        calls = [
            call_of(block.id, block.name, msgspec.json.encode(block.input).decode())
            for block in self.content
            if isinstance(block, ToolUse)
        ]
        text = any(isinstance(block, TextBlock) for block in self.content)
        if calls or text or not self.content:
            yield made(role=self.role, content=text_parts(self.content), tool_calls=calls or None)


class AnthropicTool(Strict):
    """A tool that the answer may call."""

    ignores = frozenset(
        {
            *("cache_control", "input_examples", "eager_input_streaming", "defer_loading"),
            "allowed_callers",
        }
    )
    type: Literal["custom"] | None = None
    name: Name
    description: Description | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


def _kind_of_tool(tool: object) -> str:
    given = cast(dict[str, Any], tool) if isinstance(tool, dict) else {}
    found = given.get("type", getattr(tool, "type", None))
    return "(own)" if found in (None, "custom") else "(other)"


AnyTool = Annotated[
    Annotated[AnthropicTool, Tag("(own)")] | Annotated[OtherTool, Tag("(other)")],
    Discriminator(_kind_of_tool),
]


class AnthropicToolChoice(Strict):
    """Which tools are to be called."""

    type: Literal["none", "auto", "any", "tool"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None

    def chat(self) -> Literal["none", "auto", "required"] | NamedTool:
        """The same as a chat's. Raises `ApiError`."""
        if self.type == "tool":
            if self.name is None:
                raise ApiError(400, "tool_choice needs a name.", param="tool_choice")
            return named_tool(self.name)
        return "required" if self.type == "any" else self.type


class AnthropicJsonSchema(Strict):
    """Answers are JSON that a schema allows."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Strict):
    """How the answer is written."""

    ignores = frozenset({"effort"})
    format: AnthropicJsonSchema | None = None


class ContextEdit(Strict):
    """Clearing of reasoning, which is ignored anyway. Other edits would change the prompt."""

    ignores = frozenset({"keep"})
    type: Annotated[str, Field(pattern=r"^clear_thinking_\d+$", max_length=100)]

    def ignored_names(self) -> list[str]:
        return [self.type]


class ContextManagement(Strict):
    """Edits of long conversations."""

    edits: Annotated[list[ContextEdit], Field(max_length=10)] | None = None


class CountRequest(Strict):
    """`POST /v1/messages/count_tokens`."""

    # The KV cache keeps what it can by itself, and no reasoning is kept apart.
    ignores = frozenset({"cache_control", "thinking", "speed", "user_profile_id", "workspace_id"})
    model: ModelName
    messages: Annotated[
        list[AnthropicTurn],
        Field(min_length=1, max_length=MAX_MESSAGES),
        BeforeValidator(few_parts),
    ]
    system: BoundedText | Annotated[list[TextBlock], Field(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    edgewise: EdgewiseOptions = EdgewiseOptions()

    def turns(self) -> list[ChatMessage]:
        """The same as a chat's."""
        system = text_parts(self.system) if self.system else ""
        made = Paragraphs.model_construct
        turns: list[ChatMessage] = [made(role="system", content=system)] if system else []
        for turn in self.messages:
            turns += turn.chat()
        return turns

    def chat(self) -> ChatRequest:
        """The same as a chat. Raises `ApiError`."""
        if self.messages[-1].role == "assistant":
            message = "An answer cannot be begun for the model; let the last message be the user's."
            raise ApiError(400, message, param="messages")
        tools = [
            function_tool(one.name, one.description, one.input_schema, one.strict)
            for one in self.tools or ()
            if isinstance(one, AnthropicTool)
        ]
        chosen, written = self.tool_choice, self.output_config and self.output_config.format
        choice = chosen.chat() if chosen else None
        return ChatRequest.model_construct(
            model=self.model,
            messages=self.turns(),
            response_format=json_format("answer", written.schema_) if written else None,
            tools=tools or None,
            # Without tools there is nothing to choose.
            tool_choice=choice if tools or choice not in ("none", "auto") else None,
            parallel_tool_calls=not (chosen and chosen.disable_parallel_tool_use),
            edgewise=self.edgewise,
        )


class MessagesRequest(CountRequest):
    """`POST /v1/messages`."""

    ignores = CountRequest.ignores | {"metadata", "service_tier", "inference_geo", "diagnostics"}
    max_tokens: TokenLimit
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    thread: dict[str, Any] | None = None

    def chat(self) -> ChatRequest:
        if self.thread is not None:
            message = "Threads are not kept here; send the whole conversation, and no thread."
            raise ApiError(400, message, code=NO_THREADS, param="thread")
        more: dict[str, Any] = {
            "stream": bool(self.stream),
            "stream_options": StreamOptions(include_usage=True) if self.stream else None,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
        }
        return super().chat().model_copy(update=more)


def routes(models: Models) -> APIRouter:
    """The endpoints over the loaded pairs."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/messages", responses=described("each event is named by its type"))
    async def messages(body: MessagesRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """An answer to a conversation, whole or as server-sent events."""
        answering, decoding, chat = await prepared(models, body, request, joins=True)
        writer = MessagesWriter(body, chat, ignored_headers=_ignored_headers(request))
        return await reply_with(writer, decoding, answering, request, stream=bool(body.stream))

    @router.post("/messages/count_tokens")
    async def count_tokens(  # pyright: ignore[reportUnusedFunction]
        body: CountRequest, request: Request, reply: Response
    ) -> dict[str, int]:
        """How many tokens a conversation's prompt has, by the edge model's tokenizer."""
        names = [*ignored(body), *_ignored_headers(request)]
        reply.headers.update(ignored_header(names) or {})
        answering = models.asked(body.model)
        policy_for(answering, body.model)
        # A count needs no grammar.
        asked = replace(unread(answering, body.chat()), form=None)
        ready = await queued(answering, request, lambda: answering.read(asked))
        return {"input_tokens": len(ready.prompt.ids)}

    return router


def _ignored_headers(request: Request) -> list[str]:
    found = ["anthropic-beta"] if request.headers.get("anthropic-beta") else []
    version = request.headers.get(VERSION_HEADER)
    return found if version is None or version in VERSIONS else [*found, VERSION_HEADER]


class MessagesWriter(Translator):
    """Translates a chat's reply."""

    def __init__(
        self, request: MessagesRequest, chat: ChatReply, *, ignored_headers: Sequence[str] = ()
    ) -> None:
        super().__init__(chat)
        self.ignored = [*ignored(request), *ignored_headers]
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

    async def read(self, prompt: Prompt, ticket: Ticket) -> None:
        self._prompt = len(prompt.ids)
        await super().read(prompt, ticket)

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        reply = self.chat.whole(events)
        (choice,) = reply["choices"]
        message, usage = choice["message"], reply["usage"]
        text = message["content"]
        calls = map(_tool_use, message.get("tool_calls") or ())
        found = {
            **self._head,
            "content": [*([{"type": "text", "text": text}] if text else []), *filter(None, calls)],
            **self._stopped(choice, usage),
            "usage": _usage(usage),
        }
        return {**found, "edgewise": reply["edgewise"]} if "edgewise" in reply else found

    def failed(self, error: ApiError) -> dict[str, Any]:
        return anthropic_body(error)

    def begun(self) -> Iterator[dict[str, Any]]:
        # How much of the prompt was cached is known at the end.
        usage = {"input_tokens": self._prompt, "output_tokens": 0}
        empty = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": {**self._head, **empty}}

    def opened(self, call: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        yield from self._closed()
        self._index += 1
        block: dict[str, Any] = {"type": "text", "text": ""}
        if call is not None:
            name = call["function"]["name"]
            block = {"type": "tool_use", "id": call["id"], "name": name, "input": {}}
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def grown(self, more: str, logprobs: list[Any], own: dict[str, Any]) -> dict[str, Any]:
        delta = (
            {"type": "text_delta", "text": more}
            if self.part == "text"
            else {"type": "input_json_delta", "partial_json": more}
        )
        return {"type": "content_block_delta", "index": self._index, "delta": delta, **own}

    def ended(self, choice: dict[str, Any], usage: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._closed()
        stopped = self._stopped(choice, usage)
        yield {"type": "message_delta", "delta": stopped, "usage": _usage(usage)}
        yield {"type": "message_stop"}

    def _closed(self) -> Iterator[dict[str, Any]]:
        if self.part is not None:
            yield {"type": "content_block_stop", "index": self._index}

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
    """A call of the chat's; None if it was cut in the middle of its arguments."""
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
