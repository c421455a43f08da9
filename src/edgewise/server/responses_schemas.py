"""What `/v1/responses` takes and returns, in OpenAI's terms; a request becomes a chat's."""

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Discriminator, Field, Tag

from edgewise.server.form_schemas import TextFormat
from edgewise.server.harmless import HARMLESS, Harmless, refused
from edgewise.server.schemas import (
    MAX_MESSAGES,
    MAX_TOKENS,
    TOP_LOGPROBS,
    BoundedText,
    ChatMessage,
    ChatRequest,
    EdgewiseOptions,
    Nothing,
    Provenance,
    StreamOptions,
    TokenLogprob,
)
from edgewise.server.strict import Strict
from edgewise.server.turns import joined
from edgewise.server.usage_schemas import CloudUsage

LOGPROBS = "message.output_text.logprobs"
"""What `include` may name; what else it may name there is none of here."""


class InputText(Strict):
    """A part of a message; only text can be read. An answer's parts come back as they were."""

    type: Literal["input_text", "output_text", "text"]
    text: BoundedText
    annotations: Harmless = None
    logprobs: Harmless = None
    prompt_cache_breakpoint: Harmless = None


class InputMessage(Strict):
    """A turn; an answer's comes back with its id and status."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: BoundedText | Annotated[list[InputText], Field(max_length=MAX_MESSAGES)]
    id: Harmless = None
    status: Harmless = None
    phase: Harmless = None

    @property
    def text(self) -> str:
        """The content in one piece."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ReasoningItem(Strict):
    """Another model's thoughts, which are not read here."""

    type: Literal["reasoning"]
    id: Harmless = None
    summary: Harmless = None
    content: Harmless = None
    encrypted_content: Harmless = None
    status: Harmless = None


def _kind(item: object) -> str:
    """An item without a type is a message."""
    if isinstance(item, dict):
        return str(cast(dict[str, Any], item).get("type", "message"))
    return str(getattr(item, "type", ""))


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")] | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]


class TextOptions(Strict):
    """How the answer is written."""

    format: TextFormat | None = None
    verbosity: Harmless = None


class ResponsesRequest(Strict):
    """`POST /v1/responses`. Nothing is kept: a conversation comes whole, in `input`."""

    model: Annotated[str, Field(max_length=200)]
    input: BoundedText | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: BoundedText | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    text: TextOptions | None = None
    tools: Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
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
    # Nothing is stored, billed by tier, screened, or cached by a key.
    store: Annotated[bool | None, HARMLESS] = None
    metadata: Annotated[dict[str, str] | None, Field(max_length=16)] = None
    client_metadata: Harmless = None
    service_tier: Harmless = None
    safety_identifier: Harmless = None
    prompt_cache_key: Harmless = None
    prompt_cache_retention: Harmless = None
    prompt_cache_options: Harmless = None
    user: Harmless = None
    # Hints for models that take them, and limits that are never reached.
    reasoning: Harmless = None
    max_tool_calls: Harmless = None
    parallel_tool_calls: Annotated[bool | None, HARMLESS] = None
    edgewise: EdgewiseOptions = EdgewiseOptions()

    @property
    def ignored(self) -> list[str]:
        """Fields inside of others that change nothing."""
        inside = ["text.verbosity"] if self.text and self.text.verbosity else []
        if set(self.include or ()) - {LOGPROBS}:
            inside.append("include")
        if any(isinstance(item, ReasoningItem) for item in self._items):
            inside.append("input.reasoning")
        return inside

    @property
    def _items(self) -> list[InputMessage | ReasoningItem]:
        return self.input if isinstance(self.input, list) else []

    def chat(self) -> ChatRequest:
        """The same as a chat."""
        turns = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            turns.append(ChatMessage(role="user", content=self.input))
        for item in self._items:
            if isinstance(item, InputMessage):
                turns.append(ChatMessage(role=item.role, content=item.text))
        return ChatRequest.model_construct(
            model=self.model,
            messages=joined(turns),
            stream=bool(self.stream),
            stream_options=StreamOptions(include_usage=True) if self.stream else None,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            logprobs=LOGPROBS in (self.include or ()) or None,
            top_logprobs=self.top_logprobs or None,
            edgewise=self.edgewise,
        )


class OutputText(BaseModel):
    """A part of an answer."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class OutputMessage(BaseModel):
    """An answer."""

    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputText]


class IncompleteDetails(BaseModel):
    """Why an answer was cut."""

    reason: Literal["max_output_tokens"]


class InputDetails(BaseModel):
    """`cached_tokens` of the prompt were in the edge model's KV cache already."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(BaseModel):
    """Nothing is thought apart from the answer."""

    reasoning_tokens: int


class ResponsesUsage(BaseModel):
    """Token counts of an answer."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int
    edgewise: CloudUsage


class ResponsesReply(BaseModel):
    """A whole answer, and what it was asked with."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: dict[str, Any] | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool
    previous_response_id: None
    store: Literal[False]
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_p: float | None
    truncation: Literal["disabled"]
    usage: ResponsesUsage | None
    edgewise: Provenance | None = None
