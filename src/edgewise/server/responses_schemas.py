"""What `/v1/responses` takes and returns, in OpenAI's terms; a request becomes a chat's."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from edgewise.grammar.form import MAX_TOOLS
from edgewise.server.errors import ApiError
from edgewise.server.form_schemas import (
    CallId,
    FormName,
    FunctionCall,
    FunctionDefinition,
    JsonObjectFormat,
    JsonSchemaFormat,
    JsonSchemaText,
    OtherTool,
    TextFormat,
)
from edgewise.server.harmless import HARMLESS, Harmless, refused, shown
from edgewise.server.schemas import (
    MAX_MESSAGES,
    BoundedText,
    ChatMessage,
    ChatRequest,
    EdgewiseOptions,
    ModelName,
    Provenance,
    StreamOptions,
    Temperature,
    TextPart,
    TokenLimit,
    TokenLogprob,
    TopLogprobs,
    TopP,
    few_parts,
)
from edgewise.server.strict import Strict
from edgewise.server.turns import call_of, function_tool, json_format, named_tool
from edgewise.server.usage_schemas import CloudUsage, PromptDetails

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


def _content(content: str | Sequence[InputText]) -> str | list[TextPart]:
    """As a chat's."""
    if isinstance(content, str):
        return content
    return [TextPart.model_construct(type="text", text=part.text) for part in content]


class CallItem(FunctionCall):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: CallId
    id: Harmless = None
    status: Harmless = None


class OutputItem(Strict):
    """What a call came to."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: BoundedText | Annotated[list[InputText], Field(max_length=MAX_MESSAGES)]
    id: Harmless = None
    status: Harmless = None


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
        return f"({cast(dict[str, Any], item).get('type', 'message')})"
    return f"({getattr(item, 'type', '')})"


InputItem = Annotated[
    Annotated[InputMessage, Tag("(message)")]
    | Annotated[CallItem, Tag("(function_call)")]
    | Annotated[OutputItem, Tag("(function_call_output)")]
    | Annotated[ReasoningItem, Tag("(reasoning)")],
    Discriminator(_kind),
]


def _turn(item: InputItem) -> ChatMessage | None:
    """An item as a chat's turn."""
    made = ChatMessage.model_construct
    match item:
        case InputMessage():
            return made(role=item.role, content=_content(item.content))
        case CallItem():
            calls = [call_of(item.call_id, item.name, item.arguments)]
            return made(role="assistant", content="", tool_calls=calls)
        case OutputItem():
            return made(role="tool", content=_content(item.output), tool_call_id=item.call_id)
        case ReasoningItem():
            return None


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
    name: FormName


class ResponsesJsonSchema(JsonSchemaText):
    """Answers are JSON that a schema allows."""

    type: Literal["json_schema"]


class TextOptions(Strict):
    """How the answer is written."""

    format: (
        Annotated[TextFormat | JsonObjectFormat | ResponsesJsonSchema, Field(discriminator="type")]
        | None
    ) = None
    verbosity: Harmless = None

    def chat(self) -> TextFormat | JsonObjectFormat | JsonSchemaFormat | None:
        """The format as a chat's."""
        if isinstance(self.format, ResponsesJsonSchema):
            return json_format(self.format.name, self.format.schema_)
        return self.format


class ResponsesRequest(Strict):
    """`POST /v1/responses`. Nothing is kept: a conversation comes whole, in `input`."""

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
    edgewise: EdgewiseOptions = EdgewiseOptions()

    @property
    def ignored(self) -> list[str]:
        """Fields inside of others that change nothing."""
        inside = ["text.verbosity"] if self.text and self.text.verbosity else []
        if set(self.include or ()) - {LOGPROBS}:
            inside.append("include")
        if any(isinstance(item, ReasoningItem) for item in self._items):
            inside.append("input.reasoning")
        others = {tool.type for tool in self.tools or () if isinstance(tool, OtherTool)}
        inside += [f"tools.{shown(name)}" for name in sorted(others)]
        return inside

    @property
    def _items(self) -> list[InputItem]:
        return self.input if isinstance(self.input, list) else []

    def _turns(self) -> list[ChatMessage]:
        made = ChatMessage.model_construct
        turns = [made(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            turns.append(made(role="user", content=self.input))
        return [*turns, *filter(None, map(_turn, self._items))]

    def chat(self) -> ChatRequest:
        """The same as a chat. Raises `ApiError`."""
        tools = [
            function_tool(one.name, one.description, one.parameters, strict=one.strict)
            for one in self.tools or ()
            if isinstance(one, ResponsesTool)
        ]
        choice = self.tool_choice
        if isinstance(choice, ResponsesToolName):
            choice = named_tool(choice.name)
        logprobs = LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        if tools and logprobs:
            raise ApiError(400, "Logprobs are told of text alone; leave them or the tools out.")
        return ChatRequest.model_construct(
            model=self.model,
            messages=self._turns(),
            stream=bool(self.stream),
            stream_options=StreamOptions(include_usage=True) if self.stream else None,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            logprobs=logprobs or None,
            top_logprobs=self.top_logprobs or None,
            response_format=self.text.chat() if self.text else None,
            tools=tools or None,
            # Without tools nothing is chosen.
            tool_choice=choice if tools or choice not in ("none", "auto") else None,
            parallel_tool_calls=self.parallel_tool_calls,
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


class OutputCall(BaseModel):
    """A call that the answer makes; `arguments` is JSON text."""

    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "incomplete"]


class IncompleteDetails(BaseModel):
    """Why an answer was cut."""

    reason: Literal["max_output_tokens"]


class InputDetails(PromptDetails):
    """`cached_tokens` of the prompt were in the edge model's KV cache already."""

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
    output: list[OutputMessage | OutputCall]
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
