"""Servers with OpenAI's `POST /v1/completions`: vLLM, LM Studio, mlx_lm.server and others."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any, ClassVar

import msgspec

from edgewise.completion import Completion
from edgewise.errors import CloudRejected
from edgewise.servers.base import (
    GREEDY,
    LONGEST_NAME,
    EdgeServer,
    Event,
    Fault,
    IdServer,
    ListedModels,
    NextToken,
    Request,
    ServedModel,
    TextContinuation,
    TextServer,
    Wanted,
    WantedStream,
    WantedText,
    chosen,
    decoded,
    fitting,
    optional,
)
from edgewise.servers.replies import (
    TOP,
    AssistantMessage,
    Meter,
    completion_of,
    has_ended,
    logprob_of,
    only,
    text_of,
    uncached,
    verification_of,
    was_ended,
    words_of,
)

COMPLETIONS = "/v1/completions"

# The most that vLLM reports, unless it is told otherwise (`--max-logprobs`).
_MOST = 20

# Python itself refuses to read numbers that are much longer.
_ID = re.compile(r"token_id:([0-9]{1,20})")

_BY_IDS = {"return_tokens_as_token_ids": True, "skip_special_tokens": False}

_Top = Mapping[str, float | None]


class _ById(msgspec.Struct):
    id: int
    logprob: float | None = None


class _Content(msgspec.Struct):
    top_logprobs: list[_ById] = []


class _Logprobs(msgspec.Struct):
    """Lists with an entry for each token; mlx_lm.server sends `content` instead."""

    tokens: list[str] | None = None
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[_Content] = []

    def rows(self) -> list[tuple[str, float | None, _Top]]:
        """Return for each token its text, its logprob, and the candidates by their text."""
        logprobs = chain(self.token_logprobs, repeat(None))
        tops = chain(self.top_logprobs or (), repeat(None))
        named = zip(self.tokens or (), logprobs, tops, strict=False)
        return [(token, logprob, top or {}) for token, logprob, top in named]


class _Choice(msgspec.Struct):
    """A choice of a completion, with a `text`, or of a chat, with a `message`."""

    text: str | None = None
    message: AssistantMessage | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    index: int = 0


class _Reply(msgspec.Struct):
    """A whole reply, or an event of a stream."""

    choices: list[_Choice] | None = None
    usage: Meter | None = None
    error: object = None


class OpenAiReplies(TextServer):
    """Base class of servers whose replies, to a chat or to a prompt, have OpenAI's form."""

    def continued(self, data: bytes) -> TextContinuation:
        reply = decoded(data, _Reply)
        if reply.error is not None:
            raise Fault(f"the error {words_of(reply.error)!r}", CloudRejected)
        choice, usage = only(reply.choices or []), reply.usage or Meter()
        if choice.message is None and choice.text is None:
            raise Fault("a choice without any text")
        ended, prompt = was_ended(choice.finish_reason), usage.prompt_tokens
        text = choice.text or "" if choice.message is None else text_of(choice.message)
        return TextContinuation(text, ended, prompt, usage.cached, usage.written)


class CompletionsServer(OpenAiReplies):
    """A cloud model that takes the prompt as one text, by OpenAI's `/v1/completions`."""

    name, prompts, renders = "completions", True, True

    def complete(self, asked: WantedText) -> Request:
        body = {"model": asked.model, "prompt": asked.text, "max_tokens": asked.n}
        return Request(COMPLETIONS, {**body, "stream": False, **asked.drawn})


class LmStudioServer(EdgeServer):
    """LM Studio as the server of an edge model, by text prompts.

    `listed_as` is the `owned_by` of its entries in `/v1/models`. `place` is the beginning of
    `ServedModel.address`, before the model's name.
    """

    program, top, most, takes_text = "LM Studio", 10, 10, True
    listed_as: ClassVar[str] = "organization_owner"
    place: ClassVar[str] = "lmstudio:"

    def describe(
        self, url: str, model: str | None, context: int | None, *replies: bytes | None
    ) -> ServedModel | None:
        listed = optional(replies[0], ListedModels)
        if listed is None or self.listed_as not in ({one.owned_by for one in listed.data} or {""}):
            return None
        name = chosen(url, model, [entry.id for entry in listed.data])
        entry = next(entry for entry in listed.data if entry.id == name)
        # One position is for the token that the server writes.
        held = entry.max_model_len and entry.max_model_len - 1
        return ServedModel(name, f"{self.place}{entry.root or name}", fitting(context, held))

    def stream(self, asked: WantedStream) -> Request:
        body = {"model": asked.model.name, "prompt": asked.prompt, "max_tokens": asked.tokens}
        more = self._candidates(asked.top)
        return Request(COMPLETIONS, {**body, **GREEDY, "stream": asked.stream, **more})

    def _candidates(self, top: int) -> dict[str, Any]:
        return {"logprobs": top} if top else {}

    def streamed(self, data: bytes) -> Event | None:
        if data.startswith(b"data:"):
            data = data[5:].strip()
        elif not data.startswith(b"{"):
            return None
        if data == b"[DONE]":
            return Event(over=True)
        choices = decoded(data, _Reply).choices
        if choices is None or len(choices) > 1:
            raise Fault(f"{len(choices or [])} choices for one prompt")
        return self._event(choices[0]) if choices else Event()

    def _event(self, choice: _Choice) -> Event:
        rows, text = choice.logprobs, choice.text or ""
        if text and (rows is None or not rows.tokens):
            raise Fault(f"a text without logprobs, which {self.program} does not report")
        told = [self._token(*row) for row in rows.rows()] if rows else []
        return Event(told, text, ended=choice.finish_reason == "stop")

    def _token(self, text: str, logprob: float | None, top: _Top) -> NextToken:
        tops = [(name.encode(), value) for name, value in top.items()]
        return NextToken(text.encode(), [*tops, (text.encode(), logprob)])

    def metered(self, data: bytes) -> tuple[int, int | None]:
        usage = decoded(data, _Reply).usage or Meter()
        return usage.prompt_tokens or 0, uncached(usage.prompt_tokens, usage.cached)


class VllmServer(IdServer, LmStudioServer):
    """vLLM, by token ids, for a cloud or an edge model. Replies write an id as `token_id:123`.

    Cached tokens are reported only if vLLM runs with `--enable-prompt-tokens-details`.
    """

    name, owner, verifies, salts, names = "vLLM", "vllm", True, True, True
    program, top, most, takes_text = "vLLM", 20, 20, False
    listed_as, place = "vllm", ""

    def complete(self, asked: Wanted) -> Request:
        body = {"model": asked.model, "prompt": asked.ids, "max_tokens": asked.n, "logprobs": TOP}
        salt = {} if asked.salt is None else {"cache_salt": asked.salt}
        return Request(COMPLETIONS, {**body, **_BY_IDS, **asked.drawn, **salt}, asked.ids)

    def completed(self, data: bytes) -> Completion:
        reply = decoded(data, _Reply)
        choice, meter = only(reply.choices or []), reply.usage or Meter()
        rows = _written(choice)
        return completion_of(
            [id_of(token) for token in rows.tokens or ()],
            rows.token_logprobs,
            [_candidates(row) for row in rows.top_logprobs or []],
            stopped=has_ended(choice.finish_reason),
            prompt=meter.prompt_tokens,
            cached=meter.cached,
        )

    def score(self, asked: Wanted) -> Request:
        """Return a request with one prompt for each of the last `asked.n` ids: all ids before it.

        vLLM writes one token after each prompt, and reports the logprobs of the 20 likeliest ids
        there. Each prompt has one id more than the one before, and is billed on its own.
        """
        prompts = [asked.ids[:end] for end in range(-asked.n, 0)]
        one = self.complete(asked._replace(n=1, drawn=GREEDY))
        sent = [token for prompt in prompts for token in prompt]
        return one.having(prompt=prompts, logprobs=_MOST)._replace(ids=sent)

    def scored(self, data: bytes, block: Sequence[int]) -> Completion:
        """Return a `Completion` whose `verified` has a verdict on each of the scored ids (`block`).

        An id outside the 20 likeliest gets the logprob of the 20th, as a bound. Raises `Fault`.
        """
        reply = decoded(data, _Reply)
        choices = sorted(reply.choices or [], key=lambda choice: choice.index)
        if [choice.index for choice in choices] != [*range(len(block))]:
            raise Fault(f"other than one answer for each of {len(block)} prompts")
        first = [next(iter(_written(choice).top_logprobs or []), None) for choice in choices]
        tops = [_candidates(top) for top in first]
        own = [logprob_of(token, top, _MOST) for token, top in zip(block, tops, strict=True)]
        # Of the cached ones it counts those of the last prompt alone.
        prompt = (reply.usage or Meter()).prompt_tokens
        told = completion_of(block, own, tops, stopped=False, prompt=prompt, cached=None)
        return verification_of(block, told, written=len(block))

    def stream(self, asked: WantedStream) -> Request:
        # Else the penalty is that of the model's generation_config.json, such as 1.1.
        return super().stream(asked).having(**_BY_IDS, repetition_penalty=1.0)

    def _token(self, text: str, logprob: float | None, top: _Top) -> NextToken:
        return NextToken(id_of(text), _candidates(top))


class MlxServer(LmStudioServer):
    """mlx_lm.server for an edge model: it reports ids, but candidates only in whole replies."""

    program, chunk = "mlx_lm.server", 8
    listed_as, place = "", ""

    def _candidates(self, top: int) -> dict[str, Any]:
        return {"logprobs": True, "top_logprobs": top} if top else {}

    def _event(self, choice: _Choice) -> Event:
        rows = choice.logprobs.content if choice.logprobs else []
        told = [_likeliest(row.top_logprobs) for row in rows]
        return Event(told, choice.text or "")


def _likeliest(top: Sequence[_ById]) -> NextToken:
    known = [one for one in top if one.logprob is not None]
    best = max(known, key=lambda one: one.logprob or 0.0, default=None)
    if best is None:
        raise Fault("no candidates of a token")
    return NextToken(best.id, [(row.id, row.logprob) for row in top])


def _written(choice: _Choice) -> _Logprobs:
    if choice.logprobs is None or choice.logprobs.tokens is None:
        raise Fault("a completion without its token ids")
    return choice.logprobs


def _candidates(top: _Top | None) -> list[tuple[int, float | None]]:
    return [(id_of(token), value) for token, value in (top or {}).items()]


def id_of(token: str) -> int:
    """Return the id in a token's name such as `token_id:123`. Raises `Fault` for any other text."""
    match = _ID.fullmatch(token)
    if match is None:
        raise Fault(f"tokens as text where ids were asked for: {token[:LONGEST_NAME]!r}")
    return int(match[1])
