"""`POST /v1/chat/completions`."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import replace

from edgewise.edge.base import Tokenizer
from edgewise.events import FinishReason, Token
from edgewise.grammar.calls import CallReader, call_reader, collected
from edgewise.grammar.form import AnswerForm
from edgewise.prompts import Message, prompt_of
from edgewise.prompts.conversation import said
from edgewise.server.answering import Answering, DecodeRequest, Unread
from edgewise.server.bodies import JsonRoute
from edgewise.server.decoding import decode_request, marked
from edgewise.server.errors import ApiError
from edgewise.server.form_schemas import MAX_ARGUMENTS
from edgewise.server.forms import delta_of, form_of, message_of, told_call
from edgewise.server.models import Models
from edgewise.server.replies import ReplyWriter
from edgewise.server.schemas import ChatCompletion, ChatRequest
from edgewise.server.streaming import STREAMED, reply_with
from edgewise.server.turns import joined


def routes(models: Models) -> APIRouter:
    """The endpoint over the loaded pairs."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/chat/completions", response_model=ChatCompletion, responses=STREAMED)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """An answer to a conversation, whole or as server-sent events."""
        answering, decoding, writer = await prepared(models, body, request)
        return await reply_with(writer, decoding, answering, request, stream=body.stream)

    return router


async def prepared(
    models: Models, body: ChatRequest, request: Request, *, joins: bool = False
) -> tuple[Answering, DecodeRequest, "ChatReply"]:
    """The pair, what is asked of it, and who writes the reply. Raises `ApiError`.

    Turns of one role become one where the dialect `joins` them, after each was looked at. What is
    local is remembered first, so that a refused request is as local as any.
    """
    turns = [message_of(one) for one in body.messages]
    told = await marked(models.local, body, request, turns, [one.parts for one in body.messages])
    answering = models.asked(body.model)
    messages = joined(told) if joins else told
    form = form_of(body)
    tokenizer = answering.edge.tokenizer
    writer = ChatReply(
        body,
        tokenizer,
        local=messages[-1].local,
        calls=call_reader(tokenizer, form),
    )
    prompt = _unread(answering, messages, form)
    return answering, _decode_request(answering, body, prompt, told), writer


def _decode_request(
    answering: Answering, body: ChatRequest, prompt: Unread, told: Sequence[Message]
) -> DecodeRequest:
    if body.max_tokens and body.max_completion_tokens:
        raise ApiError(400, "Give max_tokens or max_completion_tokens, not both.")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs true.", param="top_logprobs")
    return decode_request(
        answering,
        body,
        prompt,
        messages=told,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        candidates=bool(body.top_logprobs),
    )


def unread(answering: Answering, body: ChatRequest) -> Unread:
    """The prompt of a conversation whose turns are joined. Raises `ApiError`, or `UsageError` for
    tools that are none."""
    return _unread(answering, joined([message_of(turn) for turn in body.messages]), form_of(body))


def _unread(answering: Answering, messages: Sequence[Message], form: AnswerForm | None) -> Unread:
    tools = form.tools if form else ()
    if sum(len(call.arguments) for one in messages for call in one.tool_calls) > MAX_ARGUMENTS:
        message = f"The calls have more than {MAX_ARGUMENTS} characters of arguments; send fewer."
        raise ApiError(400, message, param="messages")
    return Unread(
        read=lambda: prompt_of(answering.edge.tokenizer, messages, tools),
        texts=[message.content for message in messages],
        # Calls and tools are JSON, and large ones would keep all clients waiting here.
        more=lambda: said([replace(one, content="") for one in messages], tools),
        form=form,
    )


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
        """What is `local` says so, for the client to send it back with the mark. `calls` reads
        those of an answer that may have some."""
        super().__init__(request, tokenizer)
        if any(turn.name for turn in request.messages):
            self.ignored = [*self.ignored, "messages.name"]
        self._calls = calls
        self._mark = {"edgewise": {"cloud": "none"}} if local else {}
        self._top = (request.top_logprobs or 0) if request.logprobs else None

    def opening(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": "", **self._mark}}

    def pieces(self, text: str, token: Token | None = None, *, end: bool) -> list[dict[str, Any]]:
        if self._calls is None:
            return super().pieces(text, token, end=end)
        parts = [*self._calls.feed(text), *(self._calls.finish() if end else [])]
        deltas = [delta_of(part) for part in parts] or [{}]
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
            told = {"tool_calls": [told_call(call) for call in calls]} if calls else {}
            message |= {"content": text or (None if calls else ""), **told}
        return {"message": message | self._mark, "logprobs": self._logprobs(tokens)}

    def finish_reason(self, reason: FinishReason) -> str:
        called = self._calls is not None and self._calls.called
        return "tool_calls" if called and reason == "stop" else reason

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        """None where they were not asked for; a token whose writer did not say is left out."""
        if self._top is None:
            return None
        found = (self.shown.logprob(token, self._top) for token in tokens)
        return {"content": [one for one in found if one], "refusal": None}
