"""The endpoint `/v1/chat/completions`, and what the other chat APIs share with it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from edgewise.events import Candidate, Token
from edgewise.grammar.calls import CallBegun, call_reader
from edgewise.grammar.response_format import ResponseFormat
from edgewise.prompts import Message, Prompt, ToolCall
from edgewise.prompts.messages import joined
from edgewise.server.answering import Answering
from edgewise.server.errors import ApiError
from edgewise.server.models import decode_request, marked, pair_of
from edgewise.server.replies import ChunkWriter, Item, Writer, candidates_of, reply_with
from edgewise.server.requests import (
    MAX_ARGUMENTS,
    MAX_CALLS,
    AnyPlainFormat,
    Arguments,
    BoundedText,
    CallId,
    ChatTurn,
    ConversationAnswerRequest,
    FunctionDefinition,
    JsonRoute,
    JsonSchema,
    OpenAIRequest,
    Returned,
    RoleTurn,
    Strict,
    Texts,
    TokenLimit,
    Tools,
    TopLogprobs,
    Turns,
    by_type,
    response_format_of,
    texts_in,
    turn,
)


class FunctionCall(Returned):
    """The function that a tool call names, and the JSON text of its `arguments`."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: Arguments


class MessageToolCall(Returned):
    """A tool call in an assistant's message of the request."""

    id: CallId
    type: Literal["function"] | None = None
    function: FunctionCall


class ChatMessage(RoleTurn):
    """A message. The role `developer` means `system`; `tool` marks the result of a tool call."""

    # Templates know roles alone, no names.
    ignores = frozenset({"name", "annotations", "id", "cache_control"})
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Texts | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(max_length=MAX_CALLS)] | None = None
    tool_call_id: CallId | None = None
    refusal: BoundedText | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "ChatMessage":
        # An answer may have come to nothing but reasoning; so may a tool.
        reasoned = any(name.startswith(_REASONING) for name in self.model_extra or ())
        empty = self.role in _MAY_BE_EMPTY and (reasoned or _SAID & self.model_fields_set)
        if self.content is None and not self.tool_calls and not empty:
            raise PydanticCustomError("no_content", "it has neither content nor tool_calls")
        if self.refusal and self.role != "assistant":
            raise PydanticCustomError("unknown", "{name}", {"name": "refusal"})
        return self


_SAID = frozenset({"content", "tool_calls", "refusal"})
_REASONING = ("reasoning", "thinking")
_MAY_BE_EMPTY = ("assistant", "tool")


class FunctionTool(Strict):
    """A tool that the answer may call; as `tool_choice`, the one tool that it has to call."""

    type: Literal["function"]
    function: FunctionDefinition


class JsonSchemaFormat(Strict):
    """A response format with a JSON schema, in the form of `/v1/chat/completions`."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class ChatRequest(ConversationAnswerRequest, OpenAIRequest):
    """The body of `POST /v1/chat/completions`."""

    # Nothing is stored, billed by tier, screened or cached by a key; the rest are hints.
    ignores = OpenAIRequest.ignores | {
        *("store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "prompt_cache_options"),
        *("reasoning_effort", "verbosity", "prediction"),
    }
    messages: Turns[ChatMessage]
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    response_format: (
        Annotated[AnyPlainFormat | Annotated[JsonSchemaFormat, Tag("(json_schema)")], by_type()]
        | None
    ) = None
    tools: Tools[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> "ChatRequest":
        if self.max_tokens and self.max_completion_tokens:
            message = "give max_tokens or max_completion_tokens, not both"
            raise PydanticCustomError("two_limits", message)
        self.max_tokens = self.max_tokens or self.max_completion_tokens
        return self

    @property
    def candidates(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs true.", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def turns(self) -> list[ChatTurn]:
        return [
            turn(
                one.role,
                [*texts_in(one.content), *texts_in(one.refusal)],
                calls=[
                    ToolCall(call.id, call.function.name, call.function.arguments)
                    for call in one.tool_calls or ()
                ],
                call_id=one.tool_call_id,
                local=one.edgewise is not None,
            )
            for one in self.messages
        ]

    def answer_format(self) -> ResponseFormat | None:
        written, choice = self.response_format, self.tool_choice
        named = choice.function.name if isinstance(choice, FunctionTool) else None
        return response_format_of(
            written.json_schema if isinstance(written, JsonSchemaFormat) else written,
            [tool.function for tool in self.tools or ()],
            choice if isinstance(choice, str) else None,
            only=named,
            parallel=self.parallel_tool_calls,
        )


router = APIRouter(route_class=JsonRoute)


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Return an answer to a conversation, whole or, with `stream`, as server-sent events."""
    return await answered(body, request, ChatReply)


async def answered(
    body: ConversationAnswerRequest,
    request: Request,
    reply: Callable[..., Writer],
    *,
    joins: bool = False,
) -> Response:
    """Answer the conversation in `body`; return the HTTP response.

    `reply` is the API's `Writer` class. With `joins`, adjacent messages of one role are merged in
    the prompt. Raises `ApiError` or `EdgewiseError` for an invalid request or an answer that fails.
    """
    answering = pair_of(request)
    # Before anything is refused: sent again without the mark, local messages stay local.
    marks = await marked(request, body.edgewise, body.turns())
    format = body.answer_format()
    read = prompt_reader(answering, joined_turns(marks) if joins else marks, format)
    decoding = decode_request(answering, body, read, messages=marks, format=format)
    tokenizer = answering.edge.tokenizer
    writer = reply(body, tokenizer, calls=call_reader(tokenizer, format), local=marks[-1].local)
    return await reply_with(writer, decoding, request)


def prompt_reader(
    answering: Answering, messages: Sequence[Message], format: ResponseFormat | None
) -> Callable[[], Prompt]:
    """Return a function that builds the prompt of `messages`, with the tools in `format`, if any.

    Raises `ApiError` 400 at once if calls' arguments together exceed `MAX_ARGUMENTS` characters.
    """
    if sum(len(call.arguments) for one in messages for call in one.tool_calls) > MAX_ARGUMENTS:
        message = f"The calls have more than {MAX_ARGUMENTS} characters of arguments; send fewer."
        raise ApiError(400, message, param="messages")
    return partial(answering.pair.prompt, messages, tools=format.tools if format else ())


def joined_turns(turns: Sequence[Message]) -> list[Message]:
    """Return `turns`, adjacent ones of one role merged, except tool results.

    A blank line joins their texts. Raises `ApiError` 400 if `turns` is empty.
    """
    if not turns:
        raise ApiError(400, "The conversation has no message that can be read; send one.")
    return joined(turns)


class ChatReply(ChunkWriter):
    """Writes the reply of `/v1/chat/completions`."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": "", **self.mark}}

    def piece(
        self, item: Item | None = None, more: str = "", token: Token | None = None
    ) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if item is not None and item.call is None:
            delta = {"content": more}
        elif item is not None and item.call is not None:
            call = {"function": {"arguments": more}} if more else _call(item.call, "")
            delta = {"tool_calls": [{"index": item.call.index, **call}]}
        return {"delta": delta, "logprobs": self._logprobs(token)}

    def body(self) -> dict[str, Any]:
        text = "".join(item.text for item in self.items if item.call is None)
        calls = [_call(item.call, item.text) for item in self.items if item.call is not None]
        message = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        # Clients test for the field, and take an empty list for calls.
        more = {"tool_calls": calls} if calls else {}
        logged = self.request.candidates is not None
        logprobs = {"content": self.logprobs["content"], "refusal": None} if logged else None
        return {"message": message | more | self.mark, "logprobs": logprobs}

    def _logprobs(self, token: Token | None) -> dict[str, Any] | None:
        """Return the field `logprobs` of a token: None if not requested, empty lists if unknown."""
        most = self.request.candidates
        if most is None:
            return None
        if token is None or token.logprob is None:
            return {"content": [], "refusal": None}
        (one,) = self.candidates([Candidate(token.id, token.logprob)])
        top = self.candidates(candidates_of(token)[:most])
        return {"content": [{**one, "top_logprobs": top}], "refusal": None}


def _call(call: CallBegun, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
