"""`/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them: evaluations ask for ids."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from edgewise.edge.base import Tokenizer
from edgewise.server.answering import Answering
from edgewise.server.errors import ApiError
from edgewise.server.guards import JsonRoute
from edgewise.server.models import Models
from edgewise.server.requests import MAX_IDS, BoundedText, Strict
from edgewise.server.streaming import queued

LEAST_CHARACTERS = 1 << 18
CHARACTERS_A_TOKEN = 8
LEAST_IDS = 1 << 16
"""The most that is tokenised at a time; more if the model's context holds more."""


class TokenizeRequest(Strict):
    """`POST /tokenize`: special tokens that are written in the text are read as such.

    With `add_special_tokens` the ids are those of a whole prompt.
    """

    model: Annotated[str, Field(max_length=200)] | None = None
    prompt: BoundedText
    add_special_tokens: bool = True


class Tokenized(BaseModel):
    """The ids of a text, by the edge model's tokenizer."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeRequest(Strict):
    """`POST /detokenize`."""

    model: Annotated[str, Field(max_length=200)] | None = None
    tokens: Annotated[
        list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=MAX_IDS, fail_fast=True)
    ]


class Detokenized(BaseModel):
    """The text of ids; parts of characters become U+FFFD."""

    prompt: str


class TokenizerInfo(BaseModel):
    """Special tokens and the chat template, for clients that build prompts."""

    bos_token: str | None
    eos_token: str
    chat_template: str | None
    model_max_length: int


def routes(models: Models) -> APIRouter:
    """The endpoints over the loaded pairs."""
    router = APIRouter(route_class=JsonRoute)

    def asked(model: str | None) -> Answering:
        return models.first if model is None else models.asked(model)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> Tokenized:  # pyright: ignore[reportUnusedFunction]
        """The ids of a text."""
        answering = asked(body.model)
        most = max(LEAST_CHARACTERS, CHARACTERS_A_TOKEN * answering.edge.context)
        if len(body.prompt) > most:
            message = f"The text has {len(body.prompt)} characters; send {most} or fewer at a time."
            raise ApiError(400, message, param="prompt")
        tokenizer = answering.edge.tokenizer
        encode = tokenizer.encode_prompt if body.add_special_tokens else tokenizer.encode
        read = partial(answering.tokenizing, lambda: encode(body.prompt, special=True))
        ids = await queued(answering, request, read)
        return Tokenized(count=len(ids), max_model_len=answering.edge.context, tokens=ids)

    @router.post("/detokenize")
    def detokenize(body: DetokenizeRequest) -> Detokenized:  # pyright: ignore[reportUnusedFunction]
        """The text of ids."""
        edge = asked(body.model).edge
        tokenizer, most = edge.tokenizer, max(LEAST_IDS, edge.context)
        if len(body.tokens) > most:
            message = f"There are {len(body.tokens)} ids; send {most} or fewer at a time."
            raise ApiError(400, message, param="tokens")
        if max(body.tokens, default=0) >= tokenizer.size:
            message = f"The model has token ids from 0 to {tokenizer.size - 1} only."
            raise ApiError(400, message, param="tokens")
        text = b"".join(_written(tokenizer, token) for token in body.tokens)
        return Detokenized(prompt=text.decode("utf-8", "replace"))

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> TokenizerInfo:  # pyright: ignore[reportUnusedFunction]
        """Special tokens and the chat template."""
        answering = models.first
        tokenizer = answering.edge.tokenizer
        return TokenizerInfo(
            bos_token=tokenizer.special_text("bos") or None,
            eos_token=tokenizer.special_text("eos") or tokenizer.special[min(tokenizer.eos_ids)],
            chat_template=tokenizer.chat_template,
            model_max_length=answering.edge.context,
        )

    return router


def _written(tokenizer: Tokenizer, token: int) -> bytes:
    """As `tokenize` reads it."""
    special = tokenizer.special.get(token)
    return tokenizer.piece(token) if special is None else special.encode()
