"""What requests may say and what replies look like, in OpenAI's terms.

Every field is honoured or refused. Fields of the API that change nothing here are accepted at the
value that asks for nothing, since clients send them unasked, or at any value where they are
`Harmless`: the reply's header names those.
"""

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from edgewise.server.form_schemas import (
    AnswerToolCall,
    CallId,
    MessageToolCalls,
    ResponseFormat,
    ToolChoice,
    Tools,
)
from edgewise.server.harmless import HARMLESS, Harmless
from edgewise.server.strict import Strict
from edgewise.server.usage_schemas import UsageReply

MAX_MESSAGES = 1024
MAX_PARTS = 4096
"""Most parts of all messages together."""

MAX_CHARACTERS = 4 << 20
MAX_IDS = 1 << 20
MAX_STOPS = 16
MAX_TOKENS = 1 << 20
TOP_LOGPROBS = 5
"""Most candidates per token: as many as a consult brings."""

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


class TextPart(Strict):
    """A part of a message; only text can be read."""

    type: Literal["text"]
    text: BoundedText


class MessageOptions(Strict):
    """With `cloud` "none" neither the message nor what follows it is ever sent to the cloud."""

    cloud: Literal["none"]


class ChatMessage(Strict):
    """A turn. `developer` is another name of `system`; `tool` says what a call came to."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: BoundedText | Annotated[list[TextPart], Field(max_length=MAX_MESSAGES)] | None = None
    tool_calls: MessageToolCalls | None = None
    tool_call_id: CallId | None = None
    # Who speaks, where several do; templates know roles alone.
    name: Harmless = None
    # What OpenAI's own client adds when an answer is sent back as it came.
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
    """What only Edgewise has: with `provenance` replies say who wrote each token and why; with
    `pending` a stream also says what the edge guesses while a consult flies; with `cloud` "none"
    the conversation is local from its last message on, as a message's own `edgewise` says."""

    provenance: bool = False
    pending: bool = False
    cloud: Literal["none"] | None = None


class _Request(Strict):
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
    user: Annotated[Annotated[str, Field(max_length=1000)] | None, HARMLESS] = None
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
    """The same. Before each turn is looked at, its parts are counted, and those inside of them."""
    if isinstance(turns, list) and len(given := cast(list[object], turns)) <= MAX_MESSAGES:
        found = [part for turn in given for part in _parts(turn)]
        if len(found) + sum(len(_parts(part)) for part in found[:MAX_PARTS]) > MAX_PARTS:
            raise PydanticCustomError("too_long", "at most {most} parts are taken", _MOST_PARTS)
    return cast(object, turns)


def _parts(turn: object) -> list[object]:
    given = cast(dict[str, object], turn) if isinstance(turn, dict) else {}
    both = (given.get("content"), given.get("output"))
    return [part for one in both if isinstance(one, list) for part in cast(list[object], one)]


class ChatRequest(_Request):
    """`POST /v1/chat/completions`."""

    messages: Annotated[
        list[ChatMessage],
        Field(min_length=1, max_length=MAX_MESSAGES),
        BeforeValidator(few_parts),
    ]
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # Nothing is stored, billed by tier, screened, or cached by a key.
    store: Annotated[bool | None, HARMLESS] = None
    metadata: Harmless = None
    service_tier: Harmless = None
    safety_identifier: Harmless = None
    prompt_cache_key: Harmless = None
    prompt_cache_retention: Harmless = None
    prompt_cache_options: Harmless = None
    # Hints for models that take them.
    reasoning_effort: Harmless = None
    verbosity: Harmless = None
    prediction: Harmless = None


TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=1 << 31)]],
    Field(min_length=1, max_length=MAX_IDS, fail_fast=True),
]


def _form(prompt: object) -> str:
    """Which form of a prompt this wants to be, by its first element: only that one is tried."""
    first = cast(list[object], prompt)[:1] if isinstance(prompt, list) else []
    if isinstance(prompt, str):
        return "text"
    if first and isinstance(first[0], str):
        return "texts"
    return "lists" if first and isinstance(first[0], list) else "ids"


class CompletionRequest(_Request):
    """`POST /v1/completions`: one prompt, as text or as token ids.

    With `echo` the prompt comes back before its continuation, which may be of no tokens then.
    """

    prompt: Annotated[
        Annotated[BoundedText, Tag("text")]
        | Annotated[TokenIds, Tag("ids")]
        | Annotated[list[BoundedText], Field(min_length=1, max_length=1), Tag("texts")]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=1), Tag("lists")],
        Discriminator(_form),
    ]
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    best_of: Literal[1] | None = None
    suffix: None = None


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(BaseModel):
    """OpenAI's form of an error."""

    error: ErrorBody


class TopLogprob(BaseModel):
    """A candidate; `bytes` where `token` alone is not whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer with its candidates."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Of every token of a chat answer."""

    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(BaseModel):
    """The assistant's turn; with `edgewise` where it is local, as it should come back then."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[AnswerToolCall] | None = None
    edgewise: MessageOptions | None = None


class TokenProvenance(BaseModel):
    """Who wrote a token, and why. Times in seconds, logprobs in nats.

    `score` is the router's, `threshold` what it was held against, null where the answer can never
    ask the cloud; `wait` was spent on the cloud; `edge` and `cloud` are both models' candidates as
    far as they are known.
    """

    index: int
    id: int
    text: str
    source: Literal["edge", "cloud"]
    reason: str
    score: float | None
    threshold: float | None
    seconds: float
    wait: float
    edge: list[TopLogprob]
    cloud: list[TopLogprob]


class Provenance(BaseModel):
    """On demand; `timing` in seconds.

    `/v1/completions` goes on from `prompt_token_ids` and ids of `tokens`, at any place.
    """

    prompt_token_ids: list[int]
    tokens: list[TokenProvenance]
    timing: dict[str, float]


class ChatChoice(BaseModel):
    """The one answer; `stop_reason` is the stop string that ended it, as vLLM says it."""

    index: Literal[0] = 0
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | None = None


class ChatCompletion(BaseModel):
    """A whole chat answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    edgewise: Provenance | None = None


class CompletionLogprobs(BaseModel):
    """The older form; None where a model did not say."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """The one text."""

    index: Literal[0] = 0
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | None = None


class TextCompletion(BaseModel):
    """A whole text completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageReply
    edgewise: Provenance | None = None


class ModelEntry(BaseModel):
    """A model id that can be asked for."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["edgewise"] = "edgewise"


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]
