"""What `/v1/messages` takes and returns, in Anthropic's terms; a request becomes a chat's."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from edgewise.grammar.form import MAX_TOOLS
from edgewise.server.errors import NO_THREADS, ApiError
from edgewise.server.form_schemas import CallId, Description, FormName, NamedTool, OtherTool
from edgewise.server.harmless import HARMLESS, Harmless, shown
from edgewise.server.schemas import (
    MAX_MESSAGES,
    MAX_STOPS,
    BoundedText,
    ChatMessage,
    ChatRequest,
    EdgewiseOptions,
    ModelName,
    Nothing,
    Paragraphs,
    Provenance,
    StopText,
    StreamOptions,
    Temperature,
    TextPart,
    TokenLimit,
    TopK,
    TopP,
    few_parts,
)
from edgewise.server.strict import Strict
from edgewise.server.turns import call_of, function_tool, json_format, named_tool
from edgewise.server.usage_schemas import CloudUsage


class TextBlock(Strict):
    """A part of a message; only text can be read."""

    type: Literal["text"]
    text: BoundedText
    cache_control: Harmless = None
    citations: Nothing | None = None


class ThinkingBlock(Strict):
    """A model's thoughts, which are not read here."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: Harmless = None
    signature: Harmless = None
    data: Harmless = None


class ToolUse(Strict):
    """A call that an earlier answer made."""

    type: Literal["tool_use"]
    id: CallId
    name: Annotated[str, Field(min_length=1, max_length=200)]
    input: dict[str, Any]
    cache_control: Harmless = None
    caller: Harmless = None


class ToolResult(Strict):
    """What a call came to."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: BoundedText | Annotated[list[TextBlock], Field(max_length=MAX_MESSAGES)] | None = None
    is_error: Harmless = None
    cache_control: Harmless = None


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

Texts = Annotated[list[TextBlock], Field(max_length=MAX_MESSAGES)]


def _content(content: str | Sequence[Block]) -> str | list[TextPart]:
    """As a chat's; agents' blocks are paragraphs."""
    if isinstance(content, str):
        return content
    made = TextPart.model_construct
    return [made(type="text", text=one.text) for one in content if isinstance(one, TextBlock)]


class AnthropicTurn(Strict):
    """A turn. Newer clients put later instructions between the turns."""

    role: Literal["user", "assistant", "system"]
    content: BoundedText | Annotated[list[Block], Field(max_length=MAX_MESSAGES)]

    @property
    def blocks(self) -> Sequence[Block]:
        """The content in its parts, where it has any."""
        return [] if isinstance(self.content, str) else self.content


def _turns(turn: AnthropicTurn) -> Iterator[ChatMessage]:
    """A turn as a chat's: what calls came to, the text, the calls."""
    made = Paragraphs.model_construct
    if isinstance(turn.content, str):
        yield made(role=turn.role, content=turn.content)
        return
    for block in turn.content:
        if isinstance(block, ToolResult):
            content = _content(block.content or "")
            yield made(role="tool", content=content, tool_call_id=block.tool_use_id)
    calls = [
        call_of(block.id, block.name, msgspec.json.encode(block.input).decode())
        for block in turn.content
        if isinstance(block, ToolUse)
    ]
    if calls or not turn.content or any(isinstance(block, TextBlock) for block in turn.content):
        yield made(role=turn.role, content=_content(turn.content), tool_calls=calls or None)


class AnthropicTool(Strict):
    """A tool that the answer may call."""

    type: Literal["custom"] | None = None
    name: FormName
    description: Description | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: Harmless = None
    input_examples: Harmless = None
    eager_input_streaming: Harmless = None
    defer_loading: Harmless = None
    allowed_callers: Harmless = None


def _kind_of_tool(tool: object) -> str:
    given = cast(dict[str, Any], tool) if isinstance(tool, dict) else {}
    found = given.get("type", getattr(tool, "type", None))
    return "(own)" if found in (None, "custom") else "(other)"


AnthropicTools = Annotated[
    list[
        Annotated[
            Annotated[AnthropicTool, Tag("(own)")] | Annotated[OtherTool, Tag("(other)")],
            Discriminator(_kind_of_tool),
        ]
    ],
    Field(max_length=MAX_TOOLS),
]


class AnthropicToolChoice(Strict):
    """Which tools are to be called."""

    type: Literal["none", "auto", "any", "tool"]
    name: FormName | None = None
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

    effort: Harmless = None
    format: AnthropicJsonSchema | None = None


class ContextEdit(Strict):
    """What to leave out of a long conversation: thoughts are left out anyhow."""

    type: Annotated[str, Field(pattern=r"^clear_thinking_\d+$", max_length=100)]
    keep: Harmless = None


class ContextManagement(Strict):
    """What to leave out of long conversations."""

    edits: Annotated[list[ContextEdit], Field(max_length=10)] | None = None


class _Conversation(Strict):
    model: ModelName
    messages: Annotated[
        list[AnthropicTurn],
        Field(min_length=1, max_length=MAX_MESSAGES),
        BeforeValidator(few_parts),
    ]
    system: BoundedText | Texts | None = None
    tools: AnthropicTools | None = None
    tool_choice: AnthropicToolChoice | None = None
    # The KV cache keeps what it can by itself, and nothing is thought apart from the answer.
    cache_control: Harmless = None
    thinking: Harmless = None
    output_config: OutputConfig | None = None
    context_management: Annotated[ContextManagement | None, HARMLESS] = None
    speed: Harmless = None
    user_profile_id: Harmless = None
    workspace_id: Harmless = None
    edgewise: EdgewiseOptions = EdgewiseOptions()

    @property
    def ignored(self) -> list[str]:
        """Fields inside of others that change nothing."""
        inside: list[str] = []
        system = [] if isinstance(self.system, str) else self.system or []
        blocks = [*system, *(block for turn in self.messages for block in turn.blocks)]
        marked: list[Any] = [*blocks, *(self.tools or ())]
        if any(getattr(one, "cache_control", None) for one in marked):
            inside.append("messages.cache_control")
        if any(isinstance(block, ThinkingBlock) for block in blocks):
            inside.append("messages.thinking")
        if any(isinstance(block, ToolResult) and block.is_error for block in blocks):
            inside.append("messages.is_error")
        if self.output_config and self.output_config.effort:
            inside.append("output_config.effort")
        others = {tool.type for tool in self.tools or () if isinstance(tool, OtherTool)}
        return inside + [f"tools.{shown(name)}" for name in sorted(others)]

    def chat(self) -> ChatRequest:
        """The same as a chat. Raises `ApiError`."""
        system = _content(self.system) if self.system else ""
        made = Paragraphs.model_construct
        turns: list[ChatMessage] = [made(role="system", content=system)] if system else []
        for turn in self.messages:
            turns += _turns(turn)
        tools = [
            function_tool(one.name, one.description, one.input_schema, strict=one.strict)
            for one in self.tools or ()
            if isinstance(one, AnthropicTool)
        ]
        chosen, written = self.tool_choice, self.output_config and self.output_config.format
        choice = chosen.chat() if chosen else None
        return ChatRequest.model_construct(
            model=self.model,
            messages=turns,
            response_format=json_format("answer", written.schema_) if written else None,
            tools=tools or None,
            # Without tools nothing is chosen.
            tool_choice=choice if tools or choice not in ("none", "auto") else None,
            parallel_tool_calls=not (chosen and chosen.disable_parallel_tool_use),
            edgewise=self.edgewise,
        )


class CountRequest(_Conversation):
    """`POST /v1/messages/count_tokens`."""


class MessagesRequest(_Conversation):
    """`POST /v1/messages`."""

    max_tokens: TokenLimit
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    metadata: Harmless = None
    service_tier: Harmless = None
    inference_geo: Harmless = None
    diagnostics: Harmless = None
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


class AnswerBlock(BaseModel):
    """A part of an answer."""

    type: Literal["text"] = "text"
    text: str


class AnswerToolUse(BaseModel):
    """A call that the answer makes."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class MessagesUsage(BaseModel):
    """Token counts; `input_tokens` without those of the prompt that the KV cache had."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    edgewise: CloudUsage


class MessagesReply(BaseModel):
    """A whole answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock | AnswerToolUse]
    stop_reason: Literal[
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
    ]
    stop_sequence: str | None
    usage: MessagesUsage
    edgewise: Provenance | None = None


class CountReply(BaseModel):
    """How many tokens the prompt has, by the edge model's tokenizer."""

    input_tokens: int


class AnthropicErrorBody(BaseModel):
    """What went wrong."""

    type: str
    message: str
    details: dict[str, Any] | None = None


class AnthropicErrorReply(BaseModel):
    """Anthropic's form of an error."""

    type: Literal["error"]
    error: AnthropicErrorBody
