"""Fields of requests. Every field is honoured, refused, or ignored and named in a header.

A field is ignored if it changes no answer here, such as a label or a hint. Some fields, such as
`n`, are accepted only with the value that changes nothing. Requests of the three chat APIs
(`/v1/chat/completions`, `/v1/responses`, `/v1/messages`) are `ConversationRequest`s.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, cast

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute
from msgspec.structs import replace
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from edgewise.edge.base import Tokenizer
from edgewise.grammar.response_format import MAX_TOOLS, ResponseFormat, response_format_from
from edgewise.prompts import Message, Tool, ToolCall
from edgewise.server.errors import ApiError, shown

# What a request may make the server hold before its prompt is known to fit the context.
MAX_MESSAGES = 1024
MAX_PARTS = 4096
"""Maximum number of parts and tool calls of all messages together."""
MAX_CHARACTERS = 4 << 20
MAX_IDS = 1 << 20
MAX_STOPS = 16
MAX_TOKENS = 1 << 20
MAX_CALLS = 128
MAX_ARGUMENTS = 1 << 20
TOP_LOGPROBS = 5
"""Maximum of `top_logprobs`: as many candidates per token as a cloud model's reply has."""

IGNORED_HEADER = "X-Edgewise-Ignored"
_MOST_NAMES = 50  # proxies limit headers

# Some editors write it at the start of UTF-8 files.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_HIGH, _LOW = rb"u[dD][89abAB][0-9a-fA-F]{2}", rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
# A JSON escape of one UTF-16 surrogate without its other half. It begins with what is found fast;
# an escaped backslash before is looked for then.
_HALF = re.compile(
    rb"\\(?<!\\\\)(?:%b(?!\\%b)|(?<!\\%b\\)%b)" % (_HIGH, _LOW, _HIGH, _LOW), re.ASCII
)


class _JsonRequest(Request):
    """A request whose JSON is read strictly; half of a surrogate pair becomes U+FFFD."""

    async def json(self) -> Any:
        body = (await self.body()).removeprefix(_BYTE_ORDER_MARK)
        try:
            with suppress(msgspec.DecodeError):
                # Python's own reader accepts NaN, and numbers beyond any range.
                return msgspec.json.decode(body)
            # A client that cuts a text inside an emoji sends half of a pair. If it were refused, a
            # conversation that has one could never go on; browsers show U+FFFD, too.
            return msgspec.json.decode(_HALF.sub(rb"\\ufffd", body))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


class JsonRoute(APIRoute):
    """Route that checks the API key (401, 403), then refuses compression (415) and NaN (400)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            # First: the body of a stranger is not read.
            await request.app.state.callers.check(request)
            if encoding := request.headers.get("content-encoding"):
                message = f"The body's encoding {shown(encoding)} cannot be read; send it plain."
                raise ApiError(415, message)
            return await handle(_JsonRequest(request.scope, request.receive))

        return read


class Strict(BaseModel, extra="allow", strict=True):
    """Base class of request objects: refuses unknown fields, and values of a wrong type.

    An unknown field is accepted if it is null, or if `ignores`, which subclasses set, names it.
    """

    ignores: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            # One unknown field is enough: to report a million takes seconds. Null asks for nothing.
            if value is not None and not self.ignores_field(name):
                raise PydanticCustomError("unknown", "{name}", {"name": name})
        return self

    def ignores_field(self, name: str) -> bool:
        """Return whether an unknown field is ignored, not refused; subclasses may override this."""
        return name in self.ignores

    def ignored_names(self) -> list[str]:
        """Return the sorted names of the ignored fields of this object that have truthy values."""
        given = self.model_extra or {}
        # A client chose them, and they go into a header.
        return [shown(name) for name in sorted(given) if given[name]]


class IgnoredObject(Strict, extra="ignore"):
    """An object that is ignored with all its fields, such as reasoning or a provider's own tool."""

    type: Annotated[str, Field(min_length=1, max_length=200)]

    def ignored_names(self) -> list[str]:
        return [shown(self.type)]


class Returned(Strict):
    """A part of an earlier answer, sent back: unknown fields but `edgewise` are ignored."""

    def ignores_field(self, name: str) -> bool:
        # A mark that is not honoured here, since messages alone have it, must not be lost.
        return name != "edgewise"


def ignored(body: object, place: str = "") -> Iterator[str]:
    """Yield the path of each ignored field of `body`, such as `messages.name`, without indices.

    An ignored object is named by its type. `place` is the path of `body` in the request and a dot.
    """
    if isinstance(body, Strict):
        yield from (place + name for name in body.ignored_names())
        for name in type(body).model_fields:
            value = getattr(body, name)
            if isinstance(value, Strict | list):
                yield from ignored(cast(object, value), f"{place}{name}.")
    elif isinstance(body, list):
        for one in cast(list[object], body):
            yield from ignored(one, place)


def ignored_header(names: Iterable[str]) -> dict[str, str] | None:
    """Return the header `X-Edgewise-Ignored`: the first 50 distinct `names`; None without names."""
    unique = list(dict.fromkeys(names))
    return {IGNORED_HEADER: ", ".join(unique[:_MOST_NAMES])} if unique else None


_SAME_TYPES = {
    **dict.fromkeys(("input_text", "output_text", "refusal"), "text"),
    "redacted_thinking": "thinking",
}


def by_type(default: str = "", *, others: bool = False) -> Discriminator:
    """Return a discriminator for a pydantic union: an object's tag is its `type` in parentheses.

    `default` is the type of an object that has none. With `others` every type but the default has
    the tag "(other)". Synonyms share a tag: the types `text` and `input_text` both have "(text)".
    """

    def tag(value: object) -> str:
        plain = cast(dict[str, Any], value) if isinstance(value, dict) else {}
        kind = str(plain.get("type", getattr(value, "type", None)) or default)
        return "(other)" if others and kind != default else f"({_SAME_TYPES.get(kind, kind)})"

    return Discriminator(tag)


BoundedText = Annotated[str, Field(max_length=MAX_CHARACTERS)]
# To report a million wrong ids would take seconds.
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=MAX_IDS, fail_fast=True)
]
ModelName = Annotated[str, Field(max_length=200)]
TokenLimit = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
TopLogprobs = Annotated[int, Field(ge=0, le=TOP_LOGPROBS)]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]
Stop = StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None


def _nothing(value: float) -> float:
    if value:
        raise PydanticCustomError("zero", "only 0 is supported")
    return value


MustBeZero = Annotated[float, AfterValidator(_nothing)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Description = Annotated[str, Field(max_length=1 << 16)]
CallId = Annotated[str, Field(max_length=200)]  # of some servers it is empty


def _json_text(given: object) -> object:
    """Return a call's arguments as JSON text; text is returned unchanged."""
    # Some servers' answers have an object, or null for none.
    if given is None or isinstance(given, dict):
        return msgspec.json.encode(cast(object, given) or {}).decode()
    return given


Arguments = Annotated[str, Field(max_length=MAX_ARGUMENTS), BeforeValidator(_json_text)]
"""JSON text of a tool call's arguments; incomplete if the answer was cut off."""


class TextPart(Strict):
    """A text part of a message."""

    # Servers add these to the parts of their answers, which clients send back.
    ignores = frozenset(
        {
            *("annotations", "cache_control", "citations", "logprobs", "prompt_cache_breakpoint"),
            *("id", "index", "parsed", "parsed_output"),
        }
    )
    type: Literal["text", "input_text", "output_text", "refusal"]
    text: Annotated[BoundedText, Field(validation_alias=AliasChoices("text", "refusal"))]


Part = Annotated[
    Annotated[TextPart, Tag("(text)")]
    | Annotated[IgnoredObject, Tag("(thinking)")]
    | Annotated[IgnoredObject, Tag("(reasoning)")],
    by_type(),
]
Texts = BoundedText | Annotated[list[Part], Field(max_length=MAX_MESSAGES)]


class ChatTurn(NamedTuple):
    """A message, and `parts`: the texts in the request that were joined into its content."""

    message: Message
    parts: Sequence[str]


def texts_in(content: str | Sequence[Strict | str] | None) -> list[str]:
    """Return the texts in a message's content, without other parts; [] for "" or None."""
    parts = [content] if isinstance(content, str) and content else content or ()
    return [
        one if isinstance(one, str) else one.text
        for one in parts
        if isinstance(one, TextPart | str)
    ]


def turn(
    role: Literal["system", "developer", "user", "assistant", "tool"],
    content: str | Sequence[Strict | str] | None,
    *,
    between: str = "",
    calls: Iterable[ToolCall] = (),
    call_id: str | None = None,
    local: bool = False,
) -> ChatTurn:
    """Return the `ChatTurn` of a message: the texts in `content`, joined with `between`.

    `calls` are the tool calls of the message. If it is the result of a call, `call_id` is that
    call's id. A `local` message may be sent to trusted clouds only.
    """
    texts = texts_in(content)
    message = Message(
        "system" if role == "developer" else role,
        between.join(texts),
        local=local,
        tool_calls=tuple(calls),
        tool_call_id=call_id,
    )
    return ChatTurn(message, texts)


def limit_parts(turns: object) -> object:
    """Return `turns`; raise a validation error for over `MAX_PARTS` parts and tool calls in all."""
    if isinstance(turns, list):
        # What is beyond is refused by the number of messages.
        first = cast(list[object], turns)[:MAX_MESSAGES]
        parts = [part for turn in first for part in _parts(turn)]
        if len(parts) + sum(len(_parts(part)) for part in parts[:MAX_PARTS]) > MAX_PARTS:
            raise PydanticCustomError(
                "too_many", "at most {most} parts are taken", {"most": MAX_PARTS}
            )
    return cast(object, turns)


def _parts(turn: object) -> list[object]:
    given = cast(dict[str, object], turn) if isinstance(turn, dict) else {}
    lists = (given.get(name) for name in ("content", "output", "tool_calls"))
    return [part for one in lists if isinstance(one, list) for part in cast(list[object], one)]


def max_entries(most: int) -> BeforeValidator:
    """Return a validator that refuses a dict of over `most` entries before reading them."""

    def few(given: object) -> object:
        if isinstance(given, dict) and len(cast(dict[object, object], given)) > most:
            message = "at most {most} entries are taken" if most else "it has to be empty"
            raise PydanticCustomError("too_many", message, {"most": most})
        return cast(object, given)

    return BeforeValidator(few)


class RoleTurn(Strict):
    """Base class of messages in a request.

    `edgewise` {"cloud": "none"}: only trusted clouds may see this message and all that follow it.
    An assistant's message ignores unknown fields, except `audio` and `function_call`.
    """

    role: Any
    # If set, only trusted clouds may see the message and what follows it.
    edgewise: Annotated[
        dict[Literal["cloud"], Literal["none"]] | None, Field(min_length=1), max_entries(1)
    ] = None

    def ignores_field(self, name: str) -> bool:
        # These two are content, which must not get lost.
        returned = self.role == "assistant" and name not in ("audio", "function_call")
        return returned or super().ignores_field(name)


_T = TypeVar("_T")
Turns = Annotated[
    list[_T], Field(min_length=1, max_length=MAX_MESSAGES), BeforeValidator(limit_parts)
]
Tools = Annotated[list[_T], Field(max_length=MAX_TOOLS)]


class PlainFormat(Strict):
    """A response format without a schema: plain text, or any JSON object."""

    type: Literal["text", "json_object"]


class JsonSchema(Strict):
    """A JSON schema and its name. The answer follows the schema, whether or not `strict` is set."""

    name: Name | None = None
    description: Description | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class TypedJsonSchema(JsonSchema):
    """A response format with a JSON schema, in the form of `/v1/responses` and `/v1/messages`."""

    type: Literal["json_schema"]


AnyPlainFormat = (
    Annotated[PlainFormat, Tag("(text)")] | Annotated[PlainFormat, Tag("(json_object)")]
)


class FunctionDefinition(Strict):
    """A function that an answer may call with arguments that follow the JSON schema `parameters`.

    Schema keywords that the grammar does not support are refused if the function is `strict`,
    otherwise ignored and named in the header `X-Edgewise-Ignored`.
    """

    name: Name
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def response_format_of(
    format: PlainFormat | JsonSchema | None,
    tools: Sequence[FunctionDefinition],
    choice: str | None,
    *,
    only: str | None = None,
    parallel: bool | None = None,
) -> ResponseFormat | None:
    """Return the response format of a request, tools included; None for plain text.

    `choice` is "none", "auto" (also None) or "required" (call a tool). `only` names the one tool to
    call, for any `choice` but "none". The answer may have several calls unless `parallel` is False.
    Raises `ApiError` 400 for "required" or `only` without tools, `UsageError` for invalid tools.
    """
    if not tools and (only or choice == "required"):
        raise ApiError(400, "tool_choice needs tools.", param="tool_choice")
    schema: dict[str, Any] | None = None
    if isinstance(format, JsonSchema):
        schema = format.schema_
    elif format is not None and format.type == "json_object":
        schema = {"type": "object"}
    given = [Tool(one.name, one.description or "", one.parameters or {}) for one in tools]
    made = response_format_from(schema, given, choice or "auto", parallel is not False, only=only)
    lenient = frozenset(one.name for one in tools if not one.strict)
    return made and replace(made, lenient=lenient)


def require_known(tokenizer: Tokenizer, ids: Sequence[int], field: str) -> None:
    """Raise `ApiError` 400 about the request's `field` if the tokenizer lacks one of its `ids`."""
    if max(ids, default=0) >= tokenizer.size:
        message = f"The model has token ids from 0 to {tokenizer.size - 1} only."
        raise ApiError(400, message, param=field)


class StreamOptions(Strict):
    """Options of a stream. `include_usage` adds a last chunk with token counts."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class EdgewiseOptions(Strict):
    """Edgewise's own options, in the request's field `edgewise`.

    With `provenance` the reply says of each token which model wrote it and why. With `pending` a
    stream also has the draft tokens that the edge model writes while it waits for the cloud model.
    With `cloud` "none" only trusted clouds may see the last message and all that follow it.
    """

    provenance: bool = False
    pending: bool = False
    cloud: Literal["none"] | None = None


def _without_tokens(options: EdgewiseOptions) -> EdgewiseOptions:
    if options.provenance or options.pending:
        raise PydanticCustomError(
            "refused", "only cloud is supported here; use /v1/chat/completions for the others"
        )
    return options


CloudOptions = Annotated[EdgewiseOptions, AfterValidator(_without_tokens)]
"""`EdgewiseOptions` of `/v1/responses` and `/v1/messages`, which support `cloud` alone."""


class ModelRequest(Strict):
    """The fields that every request to a model has."""

    model: ModelName
    edgewise: EdgewiseOptions = EdgewiseOptions()


class ConversationRequest(ModelRequest):
    """A request with a conversation, for one of the three chat APIs."""

    @abstractmethod
    def turns(self) -> Sequence[ChatTurn]:
        """Return the messages in order, the system prompt among them. Must not raise."""

    @abstractmethod
    def answer_format(self) -> ResponseFormat | None:
        """Return format and tools, None for plain text. `ApiError` or `UsageError` if invalid."""


class AnswerRequest(ModelRequest):
    """The fields that every request for an answer has.

    Where `max_tokens`, `seed` or a sampling field is None, the server's own setting is used.
    """

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    stop: Stop = None

    @property
    def candidates(self) -> int | None:
        """How many likeliest ids with logprobs to list for each token; None: no logprobs at all."""
        return None


class ConversationAnswerRequest(ConversationRequest, AnswerRequest):
    """A request for the next answer of a conversation, for one of the three chat APIs."""


class OpenAIRequest(AnswerRequest):
    """Fields added by `/v1/chat/completions` and `/v1/completions`; only neutral values pass."""

    ignores = frozenset({"user"})
    n: Literal[1] | None = None
    frequency_penalty: MustBeZero | None = None
    presence_penalty: MustBeZero | None = None
    logit_bias: Annotated[dict[str, float] | None, max_entries(0)] = None
