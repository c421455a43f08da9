"""What `/v1/messages` takes and returns, in Anthropic's terms; a request becomes a chat's."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Discriminator, Field, Tag

from edgewise.server.harmless import HARMLESS, Harmless, refused
from edgewise.server.schemas import (
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOKENS,
    BoundedText,
    ChatMessage,
    ChatRequest,
    EdgewiseOptions,
    Nothing,
    Provenance,
    StopText,
    StreamOptions,
)
from edgewise.server.strict import Strict
from edgewise.server.turns import joined
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


def _kind(block: object) -> str:
    given = cast(dict[str, Any], block) if isinstance(block, dict) else {}
    found = given.get("type", getattr(block, "type", None))
    return "thinking" if found == "redacted_thinking" else str(found)


Block = Annotated[
    Annotated[TextBlock, Tag("text")] | Annotated[ThinkingBlock, Tag("thinking")],
    Discriminator(_kind),
]

Texts = Annotated[list[TextBlock], Field(max_length=MAX_MESSAGES)]


def _text(content: str | Sequence[Block]) -> str:
    """In one piece: agents' blocks are paragraphs."""
    if isinstance(content, str):
        return content
    return "\n\n".join(block.text for block in content if isinstance(block, TextBlock))


class AnthropicTurn(Strict):
    """A turn. Newer clients put later instructions between the turns."""

    role: Literal["user", "assistant", "system"]
    content: BoundedText | Annotated[list[Block], Field(max_length=MAX_MESSAGES)]

    @property
    def blocks(self) -> Sequence[Block]:
        """The content in its parts, where it has any."""
        return [] if isinstance(self.content, str) else self.content


class ToolChoiceOfNone(Strict):
    """No tool is to be used."""

    type: Literal["none", "auto"]
    disable_parallel_tool_use: Harmless = None


class OutputConfig(Strict):
    """How the answer is written."""

    effort: Harmless = None
    format: Annotated[None, refused("answers are plain text here; leave the format out")] = None


class ContextEdit(Strict):
    """What to leave out of a long conversation: thoughts are left out anyhow."""

    type: Annotated[str, Field(pattern=r"^clear_thinking_\d+$", max_length=100)]
    keep: Harmless = None


class ContextManagement(Strict):
    """What to leave out of long conversations."""

    edits: Annotated[list[ContextEdit], Field(max_length=10)] | None = None


class _Conversation(Strict):
    model: Annotated[str, Field(max_length=200)]
    messages: Annotated[list[AnthropicTurn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: BoundedText | Texts | None = None
    tools: Nothing | None = None
    tool_choice: ToolChoiceOfNone | None = None
    # The KV cache keeps what it can by itself, and nothing is thought apart from the answer.
    cache_control: Harmless = None
    thinking: Harmless = None
    output_config: Annotated[OutputConfig | None, HARMLESS] = None
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
        if any(isinstance(block, TextBlock) and block.cache_control for block in blocks):
            inside.append("messages.cache_control")
        if any(isinstance(block, ThinkingBlock) for block in blocks):
            inside.append("messages.thinking")
        return inside

    def turns(self) -> list[ChatMessage]:
        """The same as a chat's."""
        system = _text(self.system) if self.system else ""
        turns = [ChatMessage(role="system", content=system)] if system else []
        for turn in self.messages:
            if not turn.blocks or any(isinstance(block, TextBlock) for block in turn.blocks):
                turns.append(ChatMessage(role=turn.role, content=_text(turn.content)))
        return joined(turns)


class CountRequest(_Conversation):
    """`POST /v1/messages/count_tokens`."""

    def chat(self) -> ChatRequest:
        """The same as a chat."""
        return ChatRequest.model_construct(model=self.model, messages=self.turns())


class MessagesRequest(_Conversation):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    metadata: Harmless = None
    service_tier: Harmless = None
    inference_geo: Harmless = None
    diagnostics: Harmless = None

    def chat(self) -> ChatRequest:
        """The same as a chat."""
        return ChatRequest.model_construct(
            model=self.model,
            messages=self.turns(),
            stream=bool(self.stream),
            stream_options=StreamOptions(include_usage=True) if self.stream else None,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop_sequences,
            edgewise=self.edgewise,
        )


class AnswerBlock(BaseModel):
    """A part of an answer."""

    type: Literal["text"] = "text"
    text: str


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
    content: list[AnswerBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "model_context_window_exceeded"]
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


class AnthropicErrorReply(BaseModel):
    """Anthropic's form of an error."""

    type: Literal["error"]
    error: AnthropicErrorBody
