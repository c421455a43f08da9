"""The server's model ids, and the translation of requests into calls of its `Pair` of models.

`edgewise` uses the server's settings, `edgewise@0.05` another cloud share (the cloud's part of all
tokens), `edgewise:t0.3` a fixed threshold, `edgewise:edge` and `edgewise:cloud` one model alone.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from fastapi import Request
from msgspec.structs import replace

from edgewise.edge.vocabulary import CHUNK, longest_piece
from edgewise.grammar.response_format import ResponseFormat
from edgewise.loop.policy import Policy
from edgewise.opening import make_policy, sampling_of
from edgewise.prompts import Message, Prompt
from edgewise.server.answering import PAIR, Answering, DecodeRequest
from edgewise.server.callers import caller_of
from edgewise.server.errors import ApiError
from edgewise.server.requests import AnswerRequest, ChatTurn, EdgewiseOptions

EDGE_ALONE, CLOUD_ALONE = f"{PAIR}:edge", f"{PAIR}:cloud"

_FRACTION = r"0(?:\.\d{1,6})?|1(?:\.0{1,6})?"
_ID = re.compile(
    rf"{PAIR}(?:@(?P<share>{_FRACTION})|:t(?P<threshold>{_FRACTION})|:(?P<alone>edge|cloud))?"
)


def pair_of(request: Request) -> Answering:
    """Return the `Answering` (models and queue of answers) of the server that got `request`."""
    return cast(Answering, request.app.state.answering)


def listed_ids(answering: Answering) -> list[str]:
    """Return the model ids that the server lists; ids with other shares or thresholds work too."""
    shares = [f"{PAIR}@{share}" for share in ("0.02", "0.05", "0.1")]
    return [PAIR, *shares, EDGE_ALONE, *([CLOUD_ALONE] if answering.cloud else [])]


def policy_for(answering: Answering, model: str) -> Policy:
    """Return the policy (when to ask the cloud) of a model id: the server's, changed by the id.

    The id may set a cloud share (`edgewise@0.05`), a fixed threshold (`edgewise:t0.3`) or one model
    (`edgewise:edge`). Raises `ApiError` 404 for an unknown id or `edgewise:cloud` without a cloud.
    """
    found = _ID.fullmatch(model)
    if found is None:
        raise _not_found(
            f"There is no model {model[:60]!r}; ask for {PAIR}, or {PAIR}@0.05 (a cloud share), "
            f"{PAIR}:t0.3 (a threshold), {EDGE_ALONE} or {CLOUD_ALONE}."
        )
    settings = answering.settings
    if found["share"]:
        settings = replace(settings, cloud_share=float(found["share"]), threshold=None)
    elif found["threshold"]:
        # No budget moves it, so the same request has the same answer.
        settings = replace(settings, cloud_share=None, threshold=float(found["threshold"]))
    policy = make_policy(settings, answering.starts)
    if found["alone"] == "edge":
        return policy.edge_alone()
    if found["alone"] is None:
        return policy
    if answering.cloud is None:
        raise _not_found(f"{model!r} needs a cloud model, and the server has none.")
    # The edge's text would pass for the cloud's.
    return replace(policy.cloud_alone(), on_cloud_error="raise")


def _not_found(message: str) -> ApiError:
    return ApiError(404, message, code="model_not_found", param="model")


LOCAL_HEADER = "X-Edgewise-Cloud"
"""A header whose value "none" makes the last message local: only trusted clouds may see it. The
field `edgewise` with `cloud` "none" does the same."""


async def marked(
    request: Request, options: EdgewiseOptions, turns: Sequence[ChatTurn]
) -> list[Message]:
    """Return the messages of `turns`; `local` is set in those that only trusted clouds may see.

    These are any that is marked so or repeats an earlier local message or answer of the same key,
    the last one if the header `X-Edgewise-Cloud` or `options.cloud` is "none", and all that follow
    a local one. Remembers their texts. Raises `ApiError` 400 if the header has any other value.
    """
    said = request.headers.getlist(LOCAL_HEADER)
    if any(one.strip().lower() != "none" for one in said):
        raise ApiError(400, f"{LOCAL_HEADER} has one valid value: none.", param=LOCAL_HEADER)
    answering = pair_of(request)
    characters = sum(len(one.message.content) for one in turns)
    # A longer conversation is refused, whatever the template would leave of it.
    longest = max(CHUNK, answering.edge.context * longest_piece(answering.edge.tokenizer))
    # In a thread: to look for local texts inside long ones takes a while.
    return await asyncio.to_thread(
        answering.local.marked,
        [one.message for one in turns],
        local=bool(said) or options.cloud == "none",
        owner=caller_of(request).name,
        parts=[one.parts for one in turns],
        search=characters <= longest,
    )


def decode_request(
    answering: Answering,
    body: AnswerRequest,
    read: Callable[[], Prompt],
    *,
    messages: Sequence[Message],
    format: ResponseFormat | None = None,
) -> DecodeRequest:
    """Return the request for the answer; a field that `body` lacks gets the server's own setting.

    `read` builds the prompt. `messages` is the conversation, as `marked` returns it; `format` is
    the answer's response format (None: plain text). Raises `ApiError` 404 for a model that the
    server does not have, 400 for a field that needs `stream` or `logprobs` if that is not set, and
    `UsageError` if the cloud model cannot do what the model id (as "edgewise:cloud") means.
    """
    policy = policy_for(answering, body.model)
    # Here, too: once a stream has begun there is no status to refuse it by.
    answering.pair.require_able(policy, plain=format is None)
    if body.model == CLOUD_ALONE:
        read = partial(_sent, answering, read)
    if body.stream_options and not body.stream:
        raise ApiError(400, "stream_options needs stream true.", param="stream_options")
    if body.edgewise.pending and not body.stream:
        raise ApiError(400, "edgewise.pending needs stream true.", param="edgewise.pending")
    own = answering.settings
    given = {name: getattr(body, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    drawn = {name: value for name, value in given.items() if value is not None}
    seed = own.seed if body.seed is None else body.seed
    # OpenAI's seeds may be negative; without one, every answer is drawn anew.
    drawn["seed"] = secrets.randbelow(1 << 63) if seed is None else seed % (1 << 63)
    options = {
        "policy": policy,
        "max_tokens": own.max_tokens if body.max_tokens is None else body.max_tokens,
        "sampling": sampling_of(own, drawn),
        "stop": body.stop or (),
        "candidates": bool(body.candidates) or body.edgewise.provenance,
    }
    return DecodeRequest(
        read=read, messages=messages, format=format, options=options, pending=body.edgewise.pending
    )


def _sent(answering: Answering, read: Callable[[], Prompt]) -> Prompt:
    """Return the prompt. Raises `ApiError` if no cloud may see it."""
    prompt = read()
    if not any(tier.may_see(prompt) for tier in answering.pair.decoder.tiers):
        message = f"This conversation is local, so {CLOUD_ALONE!r} cannot answer; ask for {PAIR}."
        raise ApiError(400, message, param="model")
    return prompt
