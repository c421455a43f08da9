"""`POST /v1/completions`: a prompt as text or as token ids, sent to the models as it is."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.edge.scoring import scored
from edgewise.events import Candidate, Token
from edgewise.prompts import Message, Prompt
from edgewise.server.answering import Answering, DecodeRequest, Scorer, Ticket, Unread
from edgewise.server.decoding import decode_request, marked
from edgewise.server.errors import ApiError
from edgewise.server.guards import JsonRoute
from edgewise.server.models import Models, cloud_alone, edge_alone
from edgewise.server.replies import ReplyWriter
from edgewise.server.requests import CompletionRequest
from edgewise.server.streaming import described, reply_with


def routes(models: Models) -> APIRouter:
    """The endpoint over the loaded pairs."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/completions", responses=described("`[DONE]` ends the stream"))
    async def completions(body: CompletionRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """The continuation of a prompt, whole or as server-sent events."""
        text = _prompt_text((models.find(body.model) or models.first).edge, body)
        told = await marked(models.local, body.edgewise, request, [Message("user", text)])
        answering = models.asked(body.model)
        if body.max_tokens == 0 and not body.echo:
            raise ApiError(400, "max_tokens 0 needs echo true.", param="max_tokens")
        tokenizer = answering.edge.tokenizer
        decoding = _decode_request(answering, body, told)
        writer = EchoReply(body, answering) if body.echo else TextReply(body, tokenizer)
        return await reply_with(writer, decoding, answering, request, stream=body.stream)

    return router


def _decode_request(
    answering: Answering, body: CompletionRequest, told: Sequence[Message]
) -> DecodeRequest:
    return decode_request(
        answering,
        body,
        _unread(answering.edge.tokenizer, body, local=told[-1].local),
        messages=told,
        max_tokens=body.max_tokens,
        candidates=bool(body.logprobs),
    )


def _prompt_text(edge: EdgeModel, body: CompletionRequest) -> str:
    """The prompt's text, of ids too. Too many ids, and unknown ones, are refused later."""
    prompt, tokenizer = body.given, edge.tokenizer
    if isinstance(prompt, str):
        return prompt
    if len(prompt) >= edge.context:
        return ""
    pieces = (tokenizer.piece(one) for one in prompt if one < tokenizer.size)
    return b"".join(pieces).decode("utf-8", "replace")


def _unread(tokenizer: Tokenizer, body: CompletionRequest, *, local: bool) -> Unread:
    only = body.given
    if not isinstance(only, str):
        ids = only
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
        return {"text": text, "logprobs": self._written([token]) if token else None}

    def body(self, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        return {"text": text, "logprobs": self._written(tokens)}

    def _written(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        """The logprobs of an answer's tokens; None if they were not asked for."""
        if self._top is None:
            return None
        return self.logprobs([(one.id, one.logprob, self._known(one)) for one in tokens])

    def _known(self, token: Token) -> Sequence[Candidate] | None:
        if token.logprob is None:
            return ()
        return token.cloud if token.source == "cloud" else token.edge

    def logprobs(
        self, tokens: Sequence[tuple[int, float | None, Sequence[Candidate] | None]]
    ) -> dict[str, Any]:
        """The older form, of ids with their logprobs and their likeliest alternatives."""
        texts = [self.shown.text(token) for token, _, _ in tokens]
        offsets: list[int] = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [logprob for _, logprob, _ in tokens],
            "top_logprobs": [
                None if known is None else self._candidates(known) for _, _, known in tokens
            ],
            "text_offset": offsets,
        }

    def _candidates(self, known: Sequence[Candidate]) -> dict[str, float]:
        """Logprobs by text; for several ids with one text, the highest."""
        found: dict[str, float] = {}
        for one in known[: self._top]:
            found.setdefault(self.shown.text(one.id), one.logprob)
        return found


class EchoReply(TextReply):
    """The prompt before its continuation, with its logprobs if they are asked for."""

    def __init__(self, request: CompletionRequest, answering: Answering) -> None:
        """Raises `ApiError` if no single model can score the prompt."""
        super().__init__(request, answering.edge.tokenizer)
        self._answering = answering
        self._scorer = None if self._top is None else _scorer(answering, request.model, self._top)
        self._before = ""
        self._of_prompt: dict[str, Any] | None = None

    async def read(self, prompt: Prompt, ticket: Ticket) -> None:
        await super().read(prompt, ticket)
        pieces = map(self._answering.edge.tokenizer.piece, prompt.ids)
        self._before = b"".join(pieces).decode("utf-8", "replace")
        if self._scorer is not None:
            found = await self._answering.scored(self._scorer, prompt, ticket)
            self._of_prompt = self.logprobs(
                [(one.id, one.logprob, None if one.logprob is None else one.top) for one in found]
            )

    def opening(self) -> dict[str, Any]:
        return {"text": self._before, "logprobs": self._of_prompt}

    def body(self, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        whole = super().body(self._before + text, tokens)
        if self._of_prompt is not None:
            written = whole["logprobs"]
            both = {name: [*found, *written[name]] for name, found in self._of_prompt.items()}
            whole["logprobs"] = both
        return whole


def _scorer(answering: Answering, model: str, top: int) -> Scorer:
    """The model that scores the prompt. Raises `ApiError`."""
    edge, cloud_only = edge_alone(answering), cloud_alone(answering)
    if model == edge:
        return lambda ids: scored(answering.edge, ids, top=top)
    if model == cloud_only and (cloud := answering.cloud) is not None:
        return lambda ids: cloud.scored(ids, top=top)
    raise ApiError(
        400,
        f"A prompt's logprobs are those of one model, and a pair is two: ask for {edge} or "
        f"{cloud_only}, or leave logprobs out.",
        param="model",
    )
