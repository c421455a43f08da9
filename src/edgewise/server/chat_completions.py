"""`POST /v1/chat/completions`."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.edge.base import Tokenizer
from edgewise.events import Token
from edgewise.prompts import Message, prompt_of
from edgewise.server.answering import Answering, DecodeRequest, Unread
from edgewise.server.decoding import asks_local, decode_request
from edgewise.server.errors import ApiError
from edgewise.server.replies import ReplyWriter
from edgewise.server.schemas import ChatCompletion, ChatMessage, ChatRequest
from edgewise.server.streaming import STREAMED, reply_with


def routes(answering: Answering) -> APIRouter:
    """The endpoint over a loaded pair."""
    router = APIRouter()

    @router.post("/chat/completions", response_model=ChatCompletion, responses=STREAMED)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """An answer to a conversation, whole or as server-sent events."""
        decoding, writer = prepared(answering, body, request)
        return await reply_with(writer, decoding, answering, request, stream=body.stream)

    return router


def prepared(
    answering: Answering, body: ChatRequest, request: Request
) -> tuple[DecodeRequest, "ChatReply"]:
    """What is asked of the decoder, and who writes the reply. Raises `ApiError`."""
    messages = [_message(one) for one in body.messages]
    messages = answering.local.marked(messages, local=asks_local(body, request))
    decoding = _decode_request(answering, body, messages)
    return decoding, ChatReply(body, answering.edge.tokenizer, local=messages[-1].local)


def _decode_request(
    answering: Answering, body: ChatRequest, messages: Sequence[Message]
) -> DecodeRequest:
    if body.max_tokens and body.max_completion_tokens:
        raise ApiError(400, "Give max_tokens or max_completion_tokens, not both.")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs true.", param="top_logprobs")
    return decode_request(
        answering,
        body,
        _unread(answering, messages),
        local=messages[-1].local,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        candidates=bool(body.top_logprobs),
    )


def unread(answering: Answering, turns: Sequence[ChatMessage]) -> Unread:
    """A conversation's prompt."""
    return _unread(answering, [_message(turn) for turn in turns])


def _unread(answering: Answering, messages: Sequence[Message]) -> Unread:
    return Unread(
        read=lambda: prompt_of(answering.edge.tokenizer, messages),
        texts=[message.content for message in messages],
    )


def _message(turn: ChatMessage) -> Message:
    role = "system" if turn.role == "developer" else turn.role
    return Message(role, turn.text, local=turn.edgewise is not None)


class ChatReply(ReplyWriter):
    """Choices with a message."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, request: ChatRequest, tokenizer: Tokenizer, *, local: bool) -> None:
        """What is `local` says so, for the client to send it back with the mark."""
        super().__init__(request, tokenizer)
        self._mark = {"edgewise": {"cloud": "none"}} if local else {}
        self._top = (request.top_logprobs or 0) if request.logprobs else None

    def opening(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": "", **self._mark}}

    def piece(self, text: str, token: Token | None = None) -> dict[str, Any]:
        delta = {"content": text} if text or token else {}
        return {"delta": delta, "logprobs": self._logprobs([token] if token else [])}

    def body(self, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None, **self._mark}
        return {"message": message, "logprobs": self._logprobs(tokens)}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        """None where they were not asked for; a token whose writer did not say is left out."""
        if self._top is None:
            return None
        found = (self.shown.logprob(token, self._top) for token in tokens)
        return {"content": [one for one in found if one], "refusal": None}
