"""From a request's fields to a question for the decoder."""

import secrets

from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.server.answering import Answering, DecodeRequest
from edgewise.server.errors import ApiError
from edgewise.server.models import policy_for
from edgewise.server.schemas import ChatRequest, CompletionRequest


def question_of(
    answering: Answering,
    asked: ChatRequest | CompletionRequest,
    prompt: Prompt,
    *,
    max_tokens: int | None,
    candidates: bool,
) -> DecodeRequest:
    """With the server's own settings where a request says nothing. Raises `ApiError`."""
    if asked.stream_options and not asked.stream:
        raise ApiError(400, "stream_options needs stream true.", param="stream_options")
    if asked.edgewise.pending and not asked.stream:
        raise ApiError(400, "edgewise.pending needs stream true.", param="edgewise.pending")
    own = answering.settings

    def either(given: float | None, default: float) -> float:
        return default if given is None else given

    cloud = answering.cloud is not None
    return DecodeRequest(
        prompt=prompt,
        policy=policy_for(asked.model, own, answering.card, cloud=cloud),
        max_tokens=max_tokens or own.max_tokens,
        sampling=Sampling(
            temperature=either(asked.temperature, own.temperature),
            top_k=int(either(asked.top_k, own.top_k)),
            top_p=either(asked.top_p, own.top_p),
            min_p=either(asked.min_p, own.min_p),
            seed=_seed(asked.seed, own.seed),
        ),
        stop=asked.stops,
        candidates=candidates or asked.edgewise.provenance,
        pending=asked.edgewise.pending,
    )


def _seed(asked: int | None, own: int | None) -> int:
    """OpenAI's seeds may be negative; without any, every answer is another draw."""
    given = own if asked is None else asked
    return secrets.randbelow(1 << 63) if given is None else given % (1 << 63)
