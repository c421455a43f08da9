"""`/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them: evaluations ask for ids."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from edgewise.edge.base import Tokenizer
from edgewise.server.answering import Answering
from edgewise.server.errors import ApiError
from edgewise.server.guards import JsonRoute
from edgewise.server.models import models_of
from edgewise.server.replies import queued
from edgewise.server.requests import BoundedText, ModelName, Strict, TokenIds, require_known

LEAST_CHARACTERS = 1 << 18
CHARACTERS_A_TOKEN = 8
LEAST_IDS = 1 << 16
"""The most that is tokenised at a time; more if the model's context holds more."""


class TokenizeRequest(Strict):
    """`POST /tokenize`: special tokens that are written in the text are read as such.

    With `add_special_tokens` the ids are those of a whole prompt.
    """

    model: ModelName | None = None
    prompt: BoundedText
    add_special_tokens: bool = True


class DetokenizeRequest(Strict):
    """`POST /detokenize`."""

    model: ModelName | None = None
    tokens: TokenIds


router = APIRouter(route_class=JsonRoute)


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """The ids of a text, by the edge model's tokenizer."""
    answering = _asked(request, body.model)
    _require_few(
        "characters",
        "prompt",
        len(body.prompt),
        LEAST_CHARACTERS,
        CHARACTERS_A_TOKEN * answering.edge.context,
    )
    tokenizer = answering.edge.tokenizer
    encode = tokenizer.encode_prompt if body.add_special_tokens else tokenizer.encode
    read = partial(answering.tokenizing, lambda: encode(body.prompt, special=True))
    ids = await queued(answering, request, read)
    return {"count": len(ids), "max_model_len": answering.edge.context, "tokens": ids}


@router.post("/detokenize")
def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
    """The text of ids; parts of characters become U+FFFD."""
    edge = _asked(request, body.model).edge
    _require_few("ids", "tokens", len(body.tokens), LEAST_IDS, edge.context)
    require_known(edge.tokenizer, body.tokens, "tokens")
    text = b"".join(_written(edge.tokenizer, token) for token in body.tokens)
    return {"prompt": text.decode("utf-8", "replace")}


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> dict[str, Any]:
    """Special tokens and the chat template, for clients that build prompts."""
    edge = models_of(request).first.edge
    tokenizer = edge.tokenizer
    return {
        "bos_token": tokenizer.special_text("bos") or None,
        "eos_token": tokenizer.special_text("eos") or tokenizer.special[min(tokenizer.eos_ids)],
        "chat_template": tokenizer.chat_template,
        "model_max_length": edge.context,
    }


def _asked(request: Request, model: str | None) -> Answering:
    models = models_of(request)
    return models.first if model is None else models.asked(model)


def _require_few(what: str, field: str, given: int, *bounds: int) -> None:
    """Raises `ApiError` for more than the highest of `bounds`."""
    if given > max(bounds):
        message = f"There are {given} {what}; send {max(bounds)} or fewer at a time."
        raise ApiError(400, message, param=field)


def _written(tokenizer: Tokenizer, token: int) -> bytes:
    """As `tokenize` reads it."""
    special = tokenizer.special.get(token)
    return tokenizer.piece(token) if special is None else special.encode()
