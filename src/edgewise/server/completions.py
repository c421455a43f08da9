"""`POST /v1/completions`: a prompt as text or as token ids, sent to the models as it is."""

from collections.abc import Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.edge.base import Tokenizer
from edgewise.events import Token
from edgewise.prompts import Prompt
from edgewise.server.answering import Answering, DecodeRequest, Unread
from edgewise.server.decoding import asks_local, decode_request
from edgewise.server.errors import ApiError
from edgewise.server.models import Models
from edgewise.server.replies import ReplyWriter
from edgewise.server.schemas import Completion, CompletionRequest
from edgewise.server.streaming import STREAMED, reply_with


def routes(models: Models) -> APIRouter:
    """The endpoint over the loaded pairs."""
    router = APIRouter()

    @router.post("/completions", response_model=Completion, responses=STREAMED)
    async def completions(body: CompletionRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """The continuation of a prompt, whole or as server-sent events."""
        answering = models.asked(body.model)
        decoding = _decode_request(answering, body, local=asks_local(body, request))
        writer = TextReply(body, answering.edge.tokenizer)
        return await reply_with(writer, decoding, answering, request, stream=body.stream)

    return router


def _decode_request(answering: Answering, body: CompletionRequest, *, local: bool) -> DecodeRequest:
    return decode_request(
        answering,
        body,
        _unread(answering.edge.tokenizer, body, local=local),
        local=local,
        max_tokens=body.max_tokens,
        candidates=bool(body.logprobs),
    )


def _unread(tokenizer: Tokenizer, body: CompletionRequest, *, local: bool) -> Unread:
    prompt = body.prompt
    only = prompt[0] if isinstance(prompt, list) and not isinstance(prompt[0], int) else prompt
    if not isinstance(only, str):
        ids = cast(list[int], only)
        return Unread(read=lambda: _known(tokenizer, ids, local=local), ids=len(ids))
    if not only:
        raise ApiError(400, "The prompt is empty; give at least one character.", param="prompt")
    return Unread(
        read=lambda: Prompt(tuple(tokenizer.encode_prompt(only)), local=local), texts=[only]
    )


def _known(tokenizer: Tokenizer, ids: Sequence[int], *, local: bool) -> Prompt:
    if max(ids) >= tokenizer.size:
        raise ApiError(
            400, f"The model has token ids from 0 to {tokenizer.size - 1} only.", param="prompt"
        )
    return Prompt(tuple(ids), local=local)


class TextReply(ReplyWriter):
    """Choices with a text; logprobs in the older form, which counts characters."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, request: CompletionRequest, tokenizer: Tokenizer) -> None:
        super().__init__(request, tokenizer)
        self._top = request.logprobs
        self._offset = 0

    def piece(self, text: str, token: Token | None = None) -> dict[str, Any]:
        return {"text": text, "logprobs": self._logprobs([token]) if token else None}

    def body(self, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        return {"text": text, "logprobs": self._logprobs(tokens)}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if self._top is None:
            return None
        texts = [self.shown.text(token.id) for token in tokens]
        offsets: list[int] = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._candidates(token, self._top) for token in tokens],
            "text_offset": offsets,
        }

    def _candidates(self, token: Token, most: int) -> dict[str, float]:
        found = self.shown.logprob(token, most)
        return {one["token"]: one["logprob"] for one in found["top_logprobs"]} if found else {}
