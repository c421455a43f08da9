"""`POST /v1/chat/completions`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from edgewise.chat import Message, prompt_ids
from edgewise.events import Event, Finished, Pending, Rewound, Token
from edgewise.server import replies
from edgewise.server.answering import Answering, Question
from edgewise.server.asking import checked, question_of
from edgewise.server.errors import ApiError
from edgewise.server.schemas import ChatCompletion, ChatRequest
from edgewise.server.streaming import STREAMED, EventStream, unless_gone


def routes(answering: Answering) -> APIRouter:
    """The endpoint over a loaded pair."""
    router = APIRouter()
    shown = replies.Shown(answering.edge.tokenizer)

    @router.post("/chat/completions", response_model=ChatCompletion, responses=STREAMED)
    async def chat_completions(asked: ChatRequest, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """An answer to a conversation, whole or as server-sent events."""
        question = _question(answering, asked)
        ticket = answering.enter(question)
        head = replies.head("chatcmpl", "chat.completion", asked.model)
        if asked.stream:
            chunks = _chunks(answering, asked, shown, head, question, ticket)
            return EventStream(chunks, ticket)
        try:
            work = answering.collected(question, ticket)
            events = await unless_gone(request, work)
        finally:
            if not ticket.running:
                ticket.leave()
        return JSONResponse(_whole(asked, shown, head, events))

    return router


def _question(answering: Answering, asked: ChatRequest) -> Question:
    checked(asked)
    if asked.max_tokens and asked.max_completion_tokens:
        raise ApiError(400, "Give max_tokens or max_completion_tokens, not both.")
    if asked.top_logprobs and not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs true.", param="top_logprobs")
    names = {"developer": "system"}
    messages = [
        Message(names.get(message.role, message.role), message.text)  # pyright: ignore[reportArgumentType]
        for message in asked.messages
    ]
    return question_of(
        answering,
        asked,
        prompt_ids(answering.edge.tokenizer, messages),
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
        candidates=bool(asked.top_logprobs),
    )


def _logprobs(asked: ChatRequest, shown: replies.Shown, token: Token) -> dict[str, Any] | None:
    """Of one token; the list is empty for the end token and where a model did not say."""
    if not asked.logprobs:
        return None
    found = shown.logprob(token, asked.top_logprobs or 0)
    return {"content": [found] if found else [], "refusal": None}


def _whole(
    asked: ChatRequest, shown: replies.Shown, head: dict[str, Any], events: list[Event]
) -> dict[str, Any]:
    end = replies.finished(events)
    logprobs = None
    if asked.logprobs:
        tokens = [event for event in events if isinstance(event, Token)]
        known = (shown.logprob(token, asked.top_logprobs or 0) for token in tokens)
        logprobs = {"content": [one for one in known if one], "refusal": None}
    message = {"role": "assistant", "content": replies.text_of(events), "refusal": None}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": end.finish_reason,
    }
    reply = {**head, "choices": [choice], "usage": replies.usage(end.usage)}
    if asked.edgewise.provenance:
        reply["edgewise"] = shown.whole_provenance(events)
    return reply


async def _chunks(
    answering: Answering,
    asked: ChatRequest,
    shown: replies.Shown,
    head: dict[str, Any],
    question: Question,
    ticket: Any,
) -> AsyncGenerator[dict[str, Any]]:
    head = {**head, "object": "chat.completion.chunk"}
    options = asked.stream_options
    with_usage = options is not None and options.include_usage
    if with_usage:
        head["usage"] = None

    def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        own = {"logprobs": None, "finish_reason": None, **more}
        vendor = own.pop("edgewise", None)
        made = {**head, "choices": [{"index": 0, "delta": delta, **own}]}
        return made if vendor is None else {**made, "edgewise": vendor}

    yield chunk({"role": "assistant", "content": ""})
    wanted = asked.edgewise
    async with aclosing(answering.events(question, ticket)) as events:
        async for event in events:
            if isinstance(event, Token):
                vendor = {"token": shown.provenance(event)} if wanted.provenance else None
                if event.text or asked.logprobs or vendor:
                    logprobs = _logprobs(asked, shown, event)
                    yield chunk({"content": event.text}, logprobs=logprobs, edgewise=vendor)
            elif isinstance(event, Pending):
                yield chunk({}, edgewise={"pending": {"index": event.index, "text": event.text}})
            elif isinstance(event, Rewound):
                yield chunk({}, edgewise={"rewound": {"index": event.index}})
            elif isinstance(event, Finished):
                if event.text:
                    yield chunk({"content": event.text})
                vendor = {"timing": replies.timing(event)} if wanted.provenance else None
                yield chunk({}, finish_reason=event.finish_reason, edgewise=vendor)
                if with_usage:
                    yield {**head, "choices": [], "usage": replies.usage(event.usage)}
