"""`POST /v1/chat/completions`, and what the other chat APIs share with it."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import replace

from edgewise.edge.base import Tokenizer
from edgewise.events import Event, FinishReason, Token
from edgewise.grammar.calls import CallBegun, CallReader, Part, Said, call_reader, collected
from edgewise.grammar.response_format import ResponseFormat, require_response_format
from edgewise.prompts import Message, Prompt, Tool, ToolCall, prompt_of
from edgewise.prompts.conversation import said
from edgewise.server.answering import Answering, DecodeRequest, Ticket, Unread
from edgewise.server.decoding import decode_request, marked
from edgewise.server.errors import ApiError
from edgewise.server.guards import JsonRoute
from edgewise.server.models import Models
from edgewise.server.replies import ReplyWriter, Writer
from edgewise.server.requests import (
    MAX_ARGUMENTS,
    ChatMessage,
    ChatRequest,
    Dialect,
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    FunctionTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    JsonSchemaText,
    MessageToolCall,
    NamedTool,
)
from edgewise.server.streaming import described, reply_with


def routes(models: Models) -> APIRouter:
    """The endpoint over the loaded pairs."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/chat/completions", responses=described("`[DONE]` ends the stream"))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """An answer to a conversation, whole or as server-sent events."""
        answering, decoding, writer = await prepared(models, body, request)
        return await reply_with(writer, decoding, answering, request, stream=body.stream)

    return router


async def prepared(
    models: Models, asked: Dialect, request: Request, *, joins: bool = False
) -> tuple[Answering, DecodeRequest, "ChatReply"]:
    """The pair, the request to it, and the writer of the reply. Raises `ApiError`.

    With `joins`, adjacent turns of one role become one, after the local ones were found. Local
    turns are remembered before anything is refused, so a refused request is as local as any.
    """
    turns = asked.turns()
    messages = [message_of(one) for one in turns]
    parts = [one.parts for one in turns]
    told = await marked(models.local, asked.edgewise, request, messages, parts)
    body = asked.chat()
    answering = models.asked(body.model)
    messages = joined(told) if joins else told
    form = form_of(body)
    tokenizer = answering.edge.tokenizer
    writer = ChatReply(
        body, tokenizer, local=messages[-1].local, calls=call_reader(tokenizer, form)
    )
    prompt = _unread(answering, messages, form)
    if body.max_tokens and body.max_completion_tokens:
        raise ApiError(400, "Give max_tokens or max_completion_tokens, not both.")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs true.", param="top_logprobs")
    decoding = decode_request(
        answering,
        body,
        prompt,
        messages=told,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        candidates=bool(body.top_logprobs),
    )
    return answering, decoding, writer


def unread(answering: Answering, body: ChatRequest) -> Unread:
    """The prompt of a conversation whose turns are joined. Raises `ApiError` or `UsageError`."""
    return _unread(answering, joined([message_of(turn) for turn in body.messages]), form_of(body))


def _unread(
    answering: Answering, messages: Sequence[Message], form: ResponseFormat | None
) -> Unread:
    tools = form.tools if form else ()
    if sum(len(call.arguments) for one in messages for call in one.tool_calls) > MAX_ARGUMENTS:
        message = f"The calls have more than {MAX_ARGUMENTS} characters of arguments; send fewer."
        raise ApiError(400, message, param="messages")
    return Unread(
        read=lambda: prompt_of(answering.edge.tokenizer, messages, tools),
        texts=[message.content for message in messages],
        # To write large calls and tools as JSON here would block all clients.
        more=lambda: said([replace(one, content="") for one in messages], tools),
        form=form,
    )


def form_of(body: ChatRequest) -> ResponseFormat | None:
    """The response format and tools; None for plain text. Raises `ApiError` or `UsageError`."""
    choice, tools = body.tool_choice, body.tools or []
    if not tools and choice not in (None, "none"):
        raise ApiError(400, "tool_choice needs tools.", param="tool_choice")
    if choice == "none":
        tools = []
    schema: dict[str, Any] | None = None
    if isinstance(body.response_format, JsonObjectFormat):
        schema = {"type": "object"}
    elif isinstance(body.response_format, JsonSchemaFormat):
        schema = body.response_format.json_schema.schema_
    if schema is None and not tools:
        return None
    form = ResponseFormat(
        schema=schema,
        tools=tuple(map(_tool, tools)),
        required=choice == "required",
        only=choice.function.name if isinstance(choice, NamedTool) else None,
        parallel=body.parallel_tool_calls is not False,
        lenient=frozenset(tool.function.name for tool in tools if not tool.function.strict),
    )
    require_response_format(form)
    return form


def _tool(given: FunctionTool) -> Tool:
    function = given.function
    return Tool(function.name, function.description or "", function.parameters or {})


def message_of(turn: ChatMessage) -> Message:
    """A turn of the conversation."""
    return Message(
        "system" if turn.role == "developer" else turn.role,
        turn.text,
        local=turn.edgewise is not None,
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in turn.tool_calls or ()
        ),
        tool_call_id=turn.tool_call_id,
    )


def joined(turns: Sequence[Message]) -> list[Message]:
    """The conversation with adjacent turns of one role as one, with a blank line between.

    Agents send several system and user turns in a row, and most templates refuse them. An answer's
    text and its calls become one turn as well. Raises `ApiError` if there is no turn.
    """
    if not turns:
        raise ApiError(400, "The conversation has no message that can be read; send one.")
    found: list[list[Message]] = []
    for turn in turns:
        if found and found[-1][0].role == turn.role != "tool":
            found[-1].append(turn)
        else:
            found.append([turn])
    return [one[0] if len(one) == 1 else _one_turn(one) for one in found]


def _one_turn(turns: Sequence[Message]) -> Message:
    return replace(
        turns[0],
        content="\n\n".join(turn.content for turn in turns if turn.content),
        tool_calls=tuple(call for turn in turns for call in turn.tool_calls),
        local=any(turn.local for turn in turns),
    )


# Other dialects build a `ChatRequest` from these; their own values were checked already.


def call_of(id: str, name: str, arguments: str) -> MessageToolCall:
    """A call of an earlier answer."""
    function = FunctionCall.model_construct(name=name, arguments=arguments)
    return MessageToolCall.model_construct(id=id, function=function)


def function_tool(
    name: str, description: str | None, parameters: Mapping[str, Any] | None, strict: bool | None
) -> FunctionTool:
    """A tool."""
    function = FunctionDefinition.model_construct(
        name=name, description=description, parameters=parameters, strict=strict
    )
    return FunctionTool.model_construct(type="function", function=function)


def named_tool(name: str) -> NamedTool:
    """The tool that has to be called."""
    return NamedTool(type="function", function=FunctionName(name=name))


def json_format(name: str, schema: Mapping[str, Any]) -> JsonSchemaFormat:
    """JSON that a schema allows."""
    text = JsonSchemaText.model_construct(name=name, schema_=schema)
    return JsonSchemaFormat.model_construct(type="json_schema", json_schema=text)


class ChatReply(ReplyWriter):
    """Choices with a message."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        request: ChatRequest,
        tokenizer: Tokenizer,
        *,
        local: bool,
        calls: CallReader | None = None,
    ) -> None:
        """A `local` reply carries the mark, for the client to send back. `calls` reads the calls
        in an answer that may have some."""
        super().__init__(request, tokenizer)
        self._calls = calls
        self._mark = {"edgewise": {"cloud": "none"}} if local else {}
        self._top = (request.top_logprobs or 0) if request.logprobs else None

    def opening(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": "", **self._mark}}

    def pieces(self, text: str, token: Token | None = None, *, end: bool) -> list[dict[str, Any]]:
        if self._calls is None:
            return super().pieces(text, token, end=end)
        parts = [*self._calls.feed(text), *(self._calls.finish() if end else [])]
        deltas = [_delta(part) for part in parts] or [{}]
        logprobs = self._logprobs([token] if token else [])
        last = len(deltas) - 1
        return [
            {"delta": delta, "logprobs": logprobs if at == last else None}
            for at, delta in enumerate(deltas)
        ]

    def piece(self, text: str, token: Token | None = None) -> dict[str, Any]:
        delta = {"content": text} if text or token else {}
        return {"delta": delta, "logprobs": self._logprobs([token] if token else [])}

    def body(self, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._calls is not None:
            text, calls = collected(self._calls, text)
            told = {"tool_calls": [_call(call) for call in calls]} if calls else {}
            message |= {"content": text or (None if calls else ""), **told}
        return {"message": message | self._mark, "logprobs": self._logprobs(tokens)}

    def finish_reason(self, reason: FinishReason) -> str:
        called = self._calls is not None and self._calls.called
        return "tool_calls" if called and reason == "stop" else reason

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        """None if they were not asked for; a token without a known logprob is left out."""
        if self._top is None:
            return None
        found = (self.shown.logprob(token, self._top) for token in tokens)
        return {"content": [one for one in found if one], "refusal": None}


class Translator(Writer):
    """Translates a chat's reply to a dialect whose answers have parts: texts and calls."""

    end, named = None, True

    def __init__(self, chat: ChatReply) -> None:
        self.chat = chat
        self.part: Literal["text", "call"] | None = None
        self._waiting: list[dict[str, Any]] = []

    async def read(self, prompt: Prompt, ticket: Ticket) -> None:
        await self.chat.read(prompt, ticket)

    @abstractmethod
    def begun(self) -> Iterator[dict[str, Any]]:
        """The events of the answer's beginning."""

    @abstractmethod
    def opened(self, call: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The events of another part, a text or a `call`, after the end of the last one."""

    @abstractmethod
    def grown(self, more: str, logprobs: list[Any], own: dict[str, Any]) -> dict[str, Any]:
        """The event of more of the last part, with Edgewise's `own` fields."""

    @abstractmethod
    def ended(self, choice: dict[str, Any], usage: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of the answer's end."""

    async def chunks(self, events: AsyncGenerator[Event]) -> AsyncGenerator[dict[str, Any]]:
        for event in self.begun():
            yield event
        last: dict[str, Any] = {}
        async with aclosing(self.chat.chunks(events)) as chunks:
            async for chunk in chunks:
                for last in chunk["choices"]:
                    own = {"edgewise": chunk["edgewise"]} if "edgewise" in chunk else {}
                    for event in self._translated(last, own):
                        yield event
                if not chunk["choices"]:
                    if self.part is None and (self._waiting or self.always_text):
                        for event in self._open_text():
                            yield event
                    for event in (*self._without_text(), *self.ended(last, chunk["usage"])):
                        yield event

    always_text: ClassVar[bool] = False
    """Whether an answer without tokens has a text all the same."""

    def _translated(self, choice: dict[str, Any], own: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a chunk of the chat's. `own` goes with the first one that has a place."""
        for call in choice["delta"].get("tool_calls") or ():
            if "id" in call:
                yield from self.opened(call)
                self.part = "call"
            if arguments := call["function"]["arguments"]:
                yield from self._without_text()
                yield self.grown(arguments, [], own)
                own = {}
        text, logprobs = choice["delta"].get("content") or "", logprobs_of(choice)
        if text or logprobs:
            if self.part != "text":
                yield from self._open_text()
            yield from self._without_text()
            yield self.grown(text, logprobs, own)
            own = {}
        self._waiting += [own] if own else []
        if self.part is not None:
            yield from self._without_text()

    def _open_text(self) -> Iterator[dict[str, Any]]:
        yield from self.opened()
        self.part = "text"

    def _without_text(self) -> Iterator[dict[str, Any]]:
        """Provenance of tokens that added no text, such as a call's opening."""
        waiting, self._waiting = self._waiting, []
        for own in waiting:
            yield self.grown("", [], own)


def logprobs_of(choice: dict[str, Any]) -> list[Any]:
    """Those of a chat's choice; empty if they were not asked for."""
    return choice["logprobs"]["content"] if choice["logprobs"] else []


def _delta(part: Part) -> dict[str, Any]:
    """A part of an answer in a stream."""
    if isinstance(part, Said):
        return {"content": part.text}
    if isinstance(part, CallBegun):
        function = {"name": part.name, "arguments": ""}
        told = {"index": part.index, "id": part.id, "type": "function", "function": function}
    else:
        told = {"index": part.index, "function": {"arguments": part.text}}
    return {"tool_calls": [told]}


def _call(call: ToolCall) -> dict[str, Any]:
    """A whole call in an answer."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
