"""From a request's fields to a request to the pair."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import partial

from fastapi import Request
from msgspec.structs import replace

from edgewise.edge.vocabulary import CHUNK
from edgewise.prompts import Message, Prompt
from edgewise.sampling import Sampling
from edgewise.server.answering import Answering, DecodeRequest, Unread
from edgewise.server.callers import caller_of
from edgewise.server.errors import ApiError
from edgewise.server.local_messages import LocalMessages
from edgewise.server.models import cloud_alone, policy_for
from edgewise.server.requests import ChatRequest, CompletionRequest, EdgewiseOptions

LOCAL_HEADER = "X-Edgewise-Cloud"
"""Says "none" for clients that cannot send the field `edgewise`."""


def asks_local(options: EdgewiseOptions, request: Request) -> bool:
    """Whether the request says that it is local. Raises `ApiError`."""
    said = request.headers.getlist(LOCAL_HEADER)
    if any(one.strip().lower() != "none" for one in said):
        raise ApiError(400, f"{LOCAL_HEADER} may say none, and nothing else.", param=LOCAL_HEADER)
    return bool(said) or options.cloud == "none"


async def marked(
    local: LocalMessages,
    options: EdgewiseOptions,
    request: Request,
    messages: Sequence[Message],
    parts: Sequence[Sequence[str]] = (),
) -> list[Message]:
    """The conversation, with every local message marked. Raises `ApiError`."""
    mark = partial(
        local.marked,
        messages,
        local=asks_local(options, request),
        owner=caller_of(request).name,
        parts=parts,
    )
    if sum(len(message.content) for message in messages) <= CHUNK:
        return mark()
    return await asyncio.to_thread(mark)


def decode_request(
    answering: Answering,
    body: ChatRequest | CompletionRequest,
    prompt: Unread,
    *,
    messages: Sequence[Message],
    max_tokens: int | None,
    candidates: bool,
) -> DecodeRequest:
    """The request to the pair, with the server's settings for missing fields. If the last of
    `messages` is local, the edge model answers alone. Raises `ApiError`."""
    local = messages[-1].local
    policy = policy_for(answering, body.model)
    if body.model == cloud_alone(answering):
        if local:
            raise _local(answering)
        prompt = replace(prompt, read=partial(_sent, answering, prompt.read))
    if body.stream_options and not body.stream:
        raise ApiError(400, "stream_options needs stream true.", param="stream_options")
    if body.edgewise.pending and not body.stream:
        raise ApiError(400, "edgewise.pending needs stream true.", param="edgewise.pending")
    own = answering.settings

    def either(given: float | None, default: float) -> float:
        return default if given is None else given

    return DecodeRequest(
        prompt=prompt,
        messages=messages,
        policy=policy.edge_alone() if local else policy,
        max_tokens=own.max_tokens if max_tokens is None else max_tokens,
        sampling=Sampling(
            temperature=either(body.temperature, own.temperature),
            top_k=int(body.top_k or 0),
            top_p=either(body.top_p, own.top_p),
            min_p=body.min_p or 0.0,
            seed=_seed(body.seed, own.seed),
        ),
        stop=body.stops,
        candidates=candidates or body.edgewise.provenance,
        pending=body.edgewise.pending,
    )


def _seed(given: int | None, own: int | None) -> int:
    """OpenAI's seeds may be negative; without one, every answer is drawn anew."""
    chosen = own if given is None else given
    return secrets.randbelow(1 << 63) if chosen is None else chosen % (1 << 63)


def _sent(answering: Answering, read: Callable[[], Prompt]) -> Prompt:
    """The prompt. Raises `ApiError` if the context filter keeps it here."""
    prompt = read()
    if answering.cloud is not None and answering.cloud.local_only(prompt):
        raise _local(answering)
    return prompt


def _local(answering: Answering) -> ApiError:
    message = (
        f"This conversation is local, so {cloud_alone(answering)!r} cannot answer; ask for "
        f"{answering.name}."
    )
    return ApiError(400, message, param="model")
