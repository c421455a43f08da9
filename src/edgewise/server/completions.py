"""Endpoints for raw prompts: `/v1/completions`, and conversion between text and token ids.

A prompt is text or token ids, given to the models without a chat template. `/tokenize`,
`/detokenize` and `/tokenizer_info` have vLLM's names and fields, which evaluation tools use.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import replace
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.edge.scoring import Scored
from edgewise.edge.vocabulary import require_fitting
from edgewise.events import Candidate, Token
from edgewise.prompts import Prompt
from edgewise.server.answering import AnswerEvent, Answering, PromptScores
from edgewise.server.errors import ApiError
from edgewise.server.models import EDGE_ALONE, decode_request, marked, pair_of, policy_for
from edgewise.server.replies import (
    ChunkWriter,
    Item,
    admitted,
    candidates_of,
    reply_with,
    unless_gone,
)
from edgewise.server.requests import (
    BoundedText,
    JsonRoute,
    ModelName,
    OpenAIRequest,
    Strict,
    TokenIds,
    TopLogprobs,
    require_known,
    turn,
)


def _only(prompt: object) -> object:
    """Return the only prompt of a list; refuse a list of several, and return all else unchanged."""
    given = cast(list[object], prompt) if isinstance(prompt, list) else []
    if not given or not isinstance(given[0], str | list):
        return prompt
    if len(given) > 1:
        raise PydanticCustomError("many", "only one prompt is taken at a time")
    return given[0]


class CompletionRequest(OpenAIRequest):
    """The body of `POST /v1/completions`: one prompt, as text or as token ids.

    `echo` begins the reply with the prompt; with it `max_tokens` may be 0, and `logprobs` needs
    `model` "edgewise:edge".
    """

    prompt: Annotated[BoundedText | TokenIds, BeforeValidator(_only)]
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    best_of: Literal[1] | None = None

    @property
    def candidates(self) -> int | None:
        return self.logprobs


router = APIRouter(route_class=JsonRoute)


@router.post("/v1/completions")
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Return the continuation of a prompt, whole or, with `stream`, as server-sent events."""
    answering = pair_of(request)
    text = _prompt_text(answering.edge, body)
    marks = await marked(request, body.edgewise, [turn("user", text)])
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens 0 needs echo true.", param="max_tokens")
    tokenizer = answering.edge.tokenizer
    read = _prompt_reader(answering, body, local=marks[-1].local)
    decoding = decode_request(answering, body, read, messages=marks)
    if body.echo and body.logprobs is not None:
        if body.model != EDGE_ALONE:
            message = f"Only {EDGE_ALONE} gives a prompt's logprobs; ask it, or leave logprobs out."
            raise ApiError(400, message, param="model")
        decoding = replace(decoding, scored=body.logprobs)
    return await reply_with(TextReply(body, tokenizer), decoding, request)


def _prompt_text(edge: EdgeModel, body: CompletionRequest) -> str:
    """Return the prompt as text, without unknown ids; empty for too many ids."""
    prompt, tokenizer = body.prompt, edge.tokenizer
    if isinstance(prompt, str):
        return prompt
    if len(prompt) >= edge.context:
        return ""
    # Too many ids, or an unknown one, are refused later, by sentences of their own.
    pieces = (tokenizer.piece(one) for one in prompt if one < tokenizer.size)
    return b"".join(pieces).decode("utf-8", "replace")


def _prompt_reader(
    answering: Answering, body: CompletionRequest, *, local: bool
) -> Callable[[], Prompt]:
    given, tokenizer = body.prompt, answering.edge.tokenizer
    if not given:
        raise ApiError(400, "The prompt is empty; give at least one character.", param="prompt")

    def read() -> Prompt:
        if isinstance(given, str):
            require_fitting(tokenizer, [given], answering.edge.context)
            return Prompt(tuple(tokenizer.encode_prompt(given)), local=local)
        require_known(tokenizer, given, "prompt")
        return Prompt(tuple(given), local=local)

    return read


class TextReply(ChunkWriter):
    """Writes the reply of `/v1/completions`; its logprobs are lists with an entry per token."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, request: CompletionRequest, tokenizer: Tokenizer) -> None:
        super().__init__(request, tokenizer)
        self._echoes, self._offset = request.echo, 0
        self._scores: list[Scored] = []

    def opening(self) -> dict[str, Any] | None:
        return None

    def piece(
        self, item: Item | None = None, more: str = "", token: Token | None = None
    ) -> dict[str, Any]:
        if self.request.candidates is None or token is None:
            return {"text": more, "logprobs": None}
        scored = Scored(token.id, token.logprob, tuple(candidates_of(token)))
        return {"text": more, "logprobs": self._logged([scored])}

    def more(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        if isinstance(event, PromptScores):
            self._scores += event.scores
            return
        if self._echoes and not self.items:
            yield self.chunk(self._echo())
        yield from super().more(event)

    def _echo(self) -> dict[str, Any]:
        """Return a choice with the prompt's text, and its logprobs if they were asked for."""
        text = b"".join(map(self.tokenizer.piece, self.prompt_ids)).decode("utf-8", "replace")
        self.begin().text = text
        return {"text": text, "logprobs": self._logged(self._scores) if self._scores else None}

    def body(self) -> dict[str, Any]:
        text = "".join(item.text for item in self.items)
        logged = self.request.candidates is not None
        return {"text": text, "logprobs": self._logged([]) | self.logprobs if logged else None}

    def _logged(self, tokens: Sequence[Scored]) -> dict[str, Any]:
        """Return the lists of tokens, logprobs, alternatives and character offsets."""
        texts = [self.text(one.id) for one in tokens]
        made: dict[str, list[Any]] = {
            "tokens": texts,
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [
                None if one.logprob is None else self._alternatives(one.top) for one in tokens
            ],
            "text_offset": list(accumulate(map(len, texts), initial=self._offset))[:-1],
        }
        self._offset += sum(map(len, texts))
        return made

    def _alternatives(self, known: Sequence[Candidate]) -> dict[str, float]:
        """Return the requested number of logprobs by text; of ids with one text, the highest."""
        # The best are first, and an object has one value for a text.
        best: dict[str, float] = {}
        for one in known[: self.request.candidates]:
            best.setdefault(self.text(one.id), one.logprob)
        return best


# A longer one would take memory from the answers beside it.
MAX_TOKENIZED = 1 << 20
"""Maximum length of a text to tokenise, in characters."""


class TokenizeRequest(Strict):
    """The body of `POST /tokenize`. Special tokens written in the text are read as special tokens.

    With `add_special_tokens` a BOS token is added as for a whole prompt, if the model has one.
    """

    model: ModelName | None = None
    prompt: Annotated[str, Field(max_length=MAX_TOKENIZED)]
    add_special_tokens: bool = True


class DetokenizeRequest(Strict):
    """The body of `POST /detokenize`."""

    model: ModelName | None = None
    tokens: TokenIds


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """Return a text's ids in the edge model's vocabulary, their count, and the context size."""
    answering = _asked(request, body.model)
    tokenizer = answering.edge.tokenizer
    encode = tokenizer.encode_prompt if body.add_special_tokens else tokenizer.encode
    async with admitted(request):
        reading = answering.tokenizing(lambda: encode(body.prompt, special=True))
        ids = await unless_gone(request, reading)
    return {"count": len(ids), "max_model_len": answering.edge.context, "tokens": ids}


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
    """Return the text of ids of the edge model; bytes that are no whole character become U+FFFD."""
    answering = _asked(request, body.model)
    tokenizer = answering.edge.tokenizer

    def read() -> str:
        require_known(tokenizer, body.tokens, "tokens")
        return b"".join(_written(tokenizer, one) for one in body.tokens).decode("utf-8", "replace")

    async with admitted(request):
        return {"prompt": await unless_gone(request, answering.tokenizing(read))}


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> dict[str, Any]:
    """Return the edge model's BOS and EOS text, chat template and context size (in tokens)."""
    edge = pair_of(request).edge
    tokenizer = edge.tokenizer
    ends = (tokenizer.special.get(one) for one in sorted(tokenizer.eos_ids))
    return {
        "bos_token": tokenizer.special_text("bos") or None,
        "eos_token": tokenizer.special_text("eos") or next(filter(None, ends), None),
        "chat_template": tokenizer.chat_template,
        "model_max_length": edge.context,
    }


def _asked(request: Request, model: str | None) -> Answering:
    answering = pair_of(request)
    if model is not None:
        policy_for(answering, model)
    return answering


def _written(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes of a token, of a special token its text."""
    # `tokenize` reads it back as this token.
    special = tokenizer.special.get(token)
    return tokenizer.piece(token) if special is None else special.encode()
