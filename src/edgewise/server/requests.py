"""What requests may say, in OpenAI's terms: every field is honoured, ignored or refused.

An ignored field changes no answer here, such as a label or a hint; the reply's header names those
that were given. A field of the API that has one harmless value is taken with that value alone.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from edgewise.grammar.response_format import MAX_TOOLS

MAX_MESSAGES = 1024
MAX_PARTS = 4096
"""Most parts of all messages together."""

MAX_CHARACTERS = 4 << 20
MAX_IDS = 1 << 20
MAX_STOPS = 16
MAX_TOKENS = 1 << 20
MAX_CALLS = 128
MAX_ARGUMENTS = 1 << 20
TOP_LOGPROBS = 5
"""Most candidates of a token: as many as a consult brings."""

IGNORED_HEADER = "X-Edgewise-Ignored"
_MOST_NAMES = 50


class Strict(BaseModel):
    """Refuses unknown fields and values of other types. Remembers fields that it ignores."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ignores: ClassVar[frozenset[str]] = frozenset()
    _ignored: list[str] = PrivateAttr(default_factory=list[str])

    @model_validator(mode="wrap")
    @classmethod
    def _without_ignored(cls, data: object, handler: ModelWrapValidatorHandler[Any]) -> Any:
        if not isinstance(data, dict):
            return handler(data)
        given = cast(dict[str, Any], data)
        dropped = [name for name in sorted(cls.ignores) if name in given]
        if dropped:
            given = {name: value for name, value in given.items() if name not in cls.ignores}
        known = {field.alias or name for name, field in cls.model_fields.items()}
        if len(given) > len(known):
            # One unknown field is enough: to report a million takes seconds.
            stranger = next(name for name in given if name not in known)
            given = {name: given[name] for name in known if name in given} | {stranger: 0}
        made = handler(given)
        # What asks for nothing (null, false, empty) was not ignored.
        made._ignored = [name for name in dropped if cast(dict[str, Any], data)[name]]
        return made

    def ignored_names(self) -> list[str]:
        """Fields of this object alone that were given and are ignored."""
        return self._ignored


def ignored(body: object, place: str = "") -> Iterator[str]:
    """The fields of a request that are ignored, by their places, such as `messages.name`."""
    if isinstance(body, Strict):
        yield from (place + name for name in body.ignored_names())
        for name in type(body).model_fields:
            value = getattr(body, name)
            if isinstance(value, Strict | list):
                yield from ignored(cast(object, value), f"{place}{name}.")
    elif isinstance(body, list):
        for one in cast(list[object], body):
            yield from ignored(one, place)


def ignored_header(names: Iterator[str] | Sequence[str]) -> dict[str, str] | None:
    """The header that names ignored fields, each once, the first of very many; None for none."""
    found = list(dict.fromkeys(names))
    return {IGNORED_HEADER: ", ".join(found[:_MOST_NAMES])} if found else None


def shown(name: str) -> str:
    """A client's own name, as a header can hold it."""
    return "".join(one if one.isascii() and one.isprintable() else "?" for one in name[:60])


def refused(why: str) -> BeforeValidator:
    """For a known field that cannot be honoured; `why` says what to do instead."""

    def check(given: object) -> object:
        if given is not None:
            raise PydanticCustomError("refused", "{why}", {"why": why})
        return given

    return BeforeValidator(check)


BoundedText = Annotated[str, Field(max_length=MAX_CHARACTERS)]
ModelName = Annotated[str, Field(max_length=200)]
TokenLimit = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=0, le=1 << 20)]
TopLogprobs = Annotated[int, Field(ge=0, le=TOP_LOGPROBS)]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]
Zero = Annotated[float, Field(ge=0, le=0)]
Nothing = Annotated[list[Any], Field(max_length=0)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Description = Annotated[str, Field(max_length=1 << 16)]
CallId = Annotated[str, Field(min_length=1, max_length=200)]


class TextFormat(Strict):
    """Answers are plain text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Answers are a JSON object."""

    type: Literal["json_object"]


class JsonSchemaText(Strict):
    """A schema and its name. Answers are held to it, `strict` or not."""

    name: Name
    description: Description | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    """Answers are JSON that a schema allows."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaText


class FunctionDefinition(Strict):
    """A function; its arguments are held to `parameters`.

    Keywords of these that the grammar cannot hold are refused if it is `strict`, else reported.
    """

    name: Name
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Strict):
    """A tool is a function."""

    type: Literal["function"]
    function: FunctionDefinition


class OtherTool(Strict):
    """A tool that a provider runs, such as a search: it is ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)
    type: Annotated[str, Field(min_length=1, max_length=200)]

    def ignored_names(self) -> list[str]:
        return [shown(self.type)]


class FunctionName(Strict):
    """A function's name."""

    name: Name


class NamedTool(Strict):
    """The tool that has to be called."""

    type: Literal["function"]
    function: FunctionName


class FunctionCall(Strict):
    """A call; `arguments` is JSON text."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: Annotated[str, Field(max_length=MAX_ARGUMENTS)]


class MessageToolCall(Strict):
    """A call that an assistant's message made."""

    id: CallId
    type: Literal["function"] = "function"
    function: FunctionCall


class TextPart(Strict):
    """A part of a message; only text can be read."""

    type: Literal["text"]
    text: BoundedText


def text_parts(content: str | Sequence[Any]) -> str | list[TextPart]:
    """A dialect's content as a chat's; parts without text are left out."""
    if isinstance(content, str):
        return content
    made = TextPart.model_construct
    return [made(type="text", text=one.text) for one in content if hasattr(one, "text")]


class MessageOptions(Strict):
    """With `cloud` "none" neither the message nor what follows it is ever sent to the cloud."""

    cloud: Literal["none"]


class ChatMessage(Strict):
    """A turn. `developer` is another name of `system`; `tool` has the result of a call."""

    # Templates know roles alone, no names.
    ignores = frozenset({"name"})
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: BoundedText | Annotated[list[TextPart], Field(max_length=MAX_MESSAGES)] | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(max_length=MAX_CALLS)] | None = None
    tool_call_id: CallId | None = None
    # OpenAI's own client adds these to an answer that is sent back.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Nothing | None = None
    edgewise: MessageOptions | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "ChatMessage":
        if self.content is None and not self.tool_calls:
            raise PydanticCustomError("no_content", "it has neither content nor tool_calls")
        return self

    @property
    def parts(self) -> list[str]:
        """The texts of the content."""
        if self.content is None or isinstance(self.content, str):
            return [self.content] if self.content else []
        return [part.text for part in self.content]

    @property
    def text(self) -> str:
        """The content in one piece."""
        return "".join(self.parts)


class Paragraphs(ChatMessage):
    """A turn whose parts are paragraphs."""

    @property
    def text(self) -> str:
        return "\n\n".join(self.parts)


class StreamOptions(Strict):
    """`include_usage` adds a last chunk with the usage."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class EdgewiseOptions(Strict):
    """Edgewise's own options.

    With `provenance` replies say who wrote each token and why. With `pending` a stream also tells
    the draft tokens that the edge writes during a consult. With `cloud` "none" the conversation is
    local from its last message on.
    """

    provenance: bool = False
    pending: bool = False
    cloud: Literal["none"] | None = None


class _Request(Strict):
    ignores = frozenset({"user"})
    model: ModelName
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    n: Literal[1] | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    edgewise: EdgewiseOptions = EdgewiseOptions()

    @property
    def stops(self) -> list[str]:
        """Stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


_MOST_PARTS = {"most": MAX_PARTS}


def few_parts(turns: object) -> object:
    """The same turns; raises if all of them have too many parts, before each is looked at."""
    if isinstance(turns, list) and len(given := cast(list[object], turns)) <= MAX_MESSAGES:
        found = [part for turn in given for part in _parts(turn)]
        if len(found) + sum(len(_parts(part)) for part in found[:MAX_PARTS]) > MAX_PARTS:
            raise PydanticCustomError("too_long", "at most {most} parts are taken", _MOST_PARTS)
    return cast(object, turns)


def _parts(turn: object) -> list[object]:
    given = cast(dict[str, object], turn) if isinstance(turn, dict) else {}
    both = (given.get("content"), given.get("output"))
    return [part for one in both if isinstance(one, list) for part in cast(list[object], one)]


class Dialect(Protocol):
    """A request of any dialect that is a conversation."""

    @property
    def edgewise(self) -> EdgewiseOptions:
        """Edgewise's own options."""
        ...

    def turns(self) -> Sequence[ChatMessage]:
        """Its turns, as they came; raises nothing."""
        ...

    def chat(self) -> "ChatRequest":
        """The same as a chat. Raises `ApiError`."""
        ...


class ChatRequest(_Request):
    """`POST /v1/chat/completions`."""

    # Nothing is stored, billed by tier, screened or cached by a key; the rest are hints.
    ignores = frozenset(
        {
            *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"),
            *("prompt_cache_retention", "prompt_cache_options"),
            *("reasoning_effort", "verbosity", "prediction"),
        }
    )
    messages: Annotated[
        list[ChatMessage],
        Field(min_length=1, max_length=MAX_MESSAGES),
        BeforeValidator(few_parts),
    ]
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    response_format: (
        Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
        | None
    ) = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    def turns(self) -> Sequence[ChatMessage]:
        """The messages."""
        return self.messages

    def chat(self) -> "ChatRequest":
        """Itself."""
        return self


TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=1 << 31)]],
    Field(min_length=1, max_length=MAX_IDS, fail_fast=True),
]


def _kind(prompt: object) -> str:
    """Which kind of prompt this is, by its first element: only that kind is tried."""
    first = cast(list[object], prompt)[:1] if isinstance(prompt, list) else []
    if isinstance(prompt, str):
        return "text"
    if first and isinstance(first[0], str):
        return "texts"
    return "lists" if first and isinstance(first[0], list) else "ids"


class CompletionRequest(_Request):
    """`POST /v1/completions`: one prompt, as text or as token ids.

    With `echo` the prompt comes back before its continuation, which may have no tokens then.
    """

    prompt: Annotated[
        Annotated[BoundedText, Tag("text")]
        | Annotated[TokenIds, Tag("ids")]
        | Annotated[list[BoundedText], Field(min_length=1, max_length=1), Tag("texts")]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=1), Tag("lists")],
        Discriminator(_kind),
    ]
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    best_of: Literal[1] | None = None
    suffix: None = None

    @property
    def given(self) -> str | list[int]:
        """The prompt, as text or as ids."""
        prompt = self.prompt
        only = prompt[0] if isinstance(prompt, list) and not isinstance(prompt[0], int) else prompt
        return only if isinstance(only, str) else cast(list[int], only)
