"""`POST /v1/completions`: a prompt as text or as token ids, sent to the models as it is."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from edgewise.events import Event, Finished, Pending, Rewound, Token
from edgewise.server import replies
from edgewise.server.answering import Answering, Question
from edgewise.server.asking import checked, question_of
from edgewise.server.errors import ApiError
from edgewise.server.schemas import Completion, CompletionRequest
from edgewise.server.streaming import STREAMED, EventStream, unless_gone


def routes(answering: Answering) -> APIRouter:
    """The endpoint over a loaded pair."""
    router = APIRouter()
    shown = replies.Shown(answering.edge.tokenizer)

    @router.post("/completions", response_model=Completion, responses=STREAMED)
    async def completions(asked: CompletionRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """The continuation of a prompt, whole or as server-sent events."""
        question = _question(answering, asked)
        ticket = answering.enter(question)
        head = replies.head("cmpl", "text_completion", asked.model)
        if asked.stream:
            chunks = _chunks(answering, asked, shown, head, question, ticket)
            return EventStream(chunks, ticket)
        try:
            events = await unless_gone(request, answering.collected(question, ticket))
        finally:
            if not ticket.running:
                ticket.leave()
        return JSONResponse(_whole(asked, shown, head, events))

    return router


def _question(answering: Answering, asked: CompletionRequest) -> Question:
    checked(asked)
    return question_of(
        answering,
        asked,
        _ids(answering, asked),
        max_tokens=asked.max_tokens,
        candidates=bool(asked.logprobs),
    )


def _ids(answering: Answering, asked: CompletionRequest) -> list[int]:
    tokenizer, prompt = answering.edge.tokenizer, asked.prompt
    only = prompt[0] if isinstance(prompt, list) and not isinstance(prompt[0], int) else prompt
    if isinstance(only, str):
        if not only:
            raise ApiError(400, "The prompt is empty; give at least one character.", param="prompt")
        return tokenizer.encode_prompt(only)
    ids = [token for token in only if isinstance(token, int)]
    if max(ids) >= tokenizer.size:
        raise ApiError(
            400, f"The model has token ids from 0 to {tokenizer.size - 1} only.", param="prompt"
        )
    return ids


class _Logprobs:
    """The older form, which counts characters."""

    def __init__(self, shown: replies.Shown, most: int | None) -> None:
        self._shown, self._most = shown, most
        self._offset = 0

    def of(self, tokens: list[Token]) -> dict[str, Any] | None:
        """Of the next tokens; None where the request asked for none."""
        if self._most is None:
            return None
        texts: list[str] = []
        offsets: list[int] = []
        tops: list[dict[str, float]] = []
        for token in tokens:
            text = self._shown.candidate(token.id, 0.0)["token"]
            found = self._shown.logprob(token, self._most)
            texts.append(text)
            offsets.append(self._offset)
            listed = found["top_logprobs"] if found else []
            tops.append({one["token"]: one["logprob"] for one in listed})
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def _whole(
    asked: CompletionRequest, shown: replies.Shown, head: dict[str, Any], events: list[Event]
) -> dict[str, Any]:
    end = replies.finished(events)
    tokens = [event for event in events if isinstance(event, Token)]
    choice = {
        "index": 0,
        "text": replies.text_of(events),
        "logprobs": _Logprobs(shown, asked.logprobs).of(tokens),
        "finish_reason": end.finish_reason,
    }
    reply = {**head, "choices": [choice], "usage": replies.usage(end.usage)}
    if asked.edgewise.provenance:
        reply["edgewise"] = shown.whole_provenance(events)
    return reply


async def _chunks(
    answering: Answering,
    asked: CompletionRequest,
    shown: replies.Shown,
    head: dict[str, Any],
    question: Question,
    ticket: Any,
) -> AsyncGenerator[dict[str, Any]]:
    options = asked.stream_options
    with_usage = options is not None and options.include_usage
    if with_usage:
        head = {**head, "usage": None}
    logprobs = _Logprobs(shown, asked.logprobs)

    def chunk(text: str, **more: Any) -> dict[str, Any]:
        own = {"logprobs": None, "finish_reason": None, **more}
        vendor = own.pop("edgewise", None)
        made = {**head, "choices": [{"index": 0, "text": text, **own}]}
        return made if vendor is None else {**made, "edgewise": vendor}

    wanted = asked.edgewise
    async with aclosing(answering.events(question, ticket)) as events:
        async for event in events:
            if isinstance(event, Token):
                vendor = {"token": shown.provenance(event)} if wanted.provenance else None
                if event.text or asked.logprobs is not None or vendor:
                    yield chunk(event.text, logprobs=logprobs.of([event]), edgewise=vendor)
            elif isinstance(event, Pending):
                yield chunk("", edgewise={"pending": {"index": event.index, "text": event.text}})
            elif isinstance(event, Rewound):
                yield chunk("", edgewise={"rewound": {"index": event.index}})
            elif isinstance(event, Finished):
                vendor = {"timing": replies.timing(event)} if wanted.provenance else None
                yield chunk(event.text, finish_reason=event.finish_reason, edgewise=vendor)
                if with_usage:
                    yield {**head, "choices": [], "usage": replies.usage(event.usage)}
