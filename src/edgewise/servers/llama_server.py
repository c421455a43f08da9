"""llama.cpp's server, by `POST /completion` with token ids or with text."""

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from edgewise.completion import Completion, metered
from edgewise.servers.base import (
    GREEDY,
    MODELS,
    Count,
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
from edgewise.servers.replies import TOP, completion_of, logprob_of, verification_of, was_ended

# Without it the reply echoes the prompt.
_FIELDS = ["tokens", "completion_probabilities", "timings", "stop_type", "id_slot"]

# More than any logit: such an id is written wherever it may be.
_CERTAIN = 1000.0

# Forms of models' control tokens. A prompt of text has them parsed, whoever wrote them.
_SIGN = re.compile(r"<\|[^<>]{1,40}\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")


class _Top(msgspec.Struct):
    id: int
    logprob: float | None = None


class _Row(_Top):
    top_logprobs: list[_Top] = []


class _Timings(msgspec.Struct):
    """Counts of tokens (`_n`) and durations in milliseconds (`_ms`)."""

    cache_n: Count | None = None
    prompt_n: Count | None = None
    predicted_n: Count | None = None
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0


class _Reply(msgspec.Struct):
    """A whole reply or a part of a stream; `tokens_predicted` also counts tokens not sent yet."""

    tokens: list[int] | None = None
    content: str | None = None
    completion_probabilities: list[_Row] = []
    timings: _Timings = msgspec.field(default_factory=_Timings)
    stop_type: str = "limit"
    id_slot: int = -1
    tokens_predicted: int = 0


class _Generation(msgspec.Struct):
    n_ctx: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)] | None = None


class Props(msgspec.Struct):
    """A reply of `/props`; `default_generation_settings` has the context of one slot (`n_ctx`)."""

    model_path: str | None = None
    total_slots: Annotated[int, msgspec.Meta(ge=1, le=65_536)] | None = None
    eos_token: str | None = None
    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)


class _Written(msgspec.Struct):
    n_decoded: Count = 0


class _Slot(msgspec.Struct):
    is_processing: bool
    params: dict[str, Any] = {}
    next_token: list[_Written] = []


class _Prompt(msgspec.Struct):
    prompt: str


class LlamaCppServer(IdServer, EdgeServer):
    """llama-server, asked by token ids, as the server of a cloud or an edge model.

    It has no cache salt and no request priority; each slot has a prefix cache of its own. Methods
    that read a reply raise `Fault` if it cannot be used.
    """

    name, owner, verifies = "llama-server", "llamacpp", True
    # 100 are 9 KB of JSON, about 5% of a 135M model's time.
    program, top, most = "llama-server", 100, 1 << 20
    asks = (Request("/props"), MODELS)
    busy = Request("/slots")

    def complete(self, asked: Wanted) -> Request:
        body = {"prompt": asked.ids, "n_predict": asked.n, "n_probs": TOP, "return_tokens": True}
        body |= {"response_fields": _FIELDS, **ordered(asked.drawn), **_named(asked.model)}
        return Request("/completion", body, asked.ids)

    def completed(self, data: bytes) -> Completion:
        reply = decoded(data, _Reply)
        if reply.tokens is None:
            raise Fault("a reply without token ids")
        # By position, since an id may come twice; a server may leave the last ones out.
        reported = zip_longest(reply.tokens, reply.completion_probabilities[: len(reply.tokens)])
        rows = [
            row if row is not None and row.id == token else _Row(token) for token, row in reported
        ]
        timings = reply.timings
        return completion_of(
            reply.tokens,
            [row.logprob for row in rows],
            [_pairs(row) for row in rows],
            stopped=reply.stop_type == "eos",
            prompt=metered(timings.cache_n, timings.prompt_n),
            cached=timings.cache_n,
            seconds=(timings.prompt_ms + timings.predicted_ms) / 1000,
        )

    def score(self, asked: Wanted) -> Request:
        """Return the request to score the last `asked.n` ids; it takes a decode step for each."""
        # It reports no logprobs of a prompt, but those of the tokens it writes, before sampling. So
        # a grammar forces it to write these. An end token is no part of a grammar, but may be
        # written where one ends: a bias makes the server do so.
        before, (*first, last) = asked.ids[: -asked.n], asked.ids[-asked.n :]
        fields: dict[str, Any] = {**GREEDY, "logit_bias": [[last, _CERTAIN]]}
        if first:
            rule = " ".join(f"<[{token}]>" for token in first)
            fields["grammar"] = f"root ::= {rule} <[{last}]>?"
        return self.complete(asked._replace(ids=before, drawn=fields))._replace(ids=asked.ids)

    def scored(self, data: bytes, block: Sequence[int]) -> Completion:
        return verification_of(block, self.completed(data), written=len(block))

    def is_inside(self, data: bytes, token: int) -> bool:
        """Return whether a reply to `score` lacks logprobs, as `token` ends inside a character."""
        reply = decoded(data, _Reply)
        return reply.tokens == [token] and not reply.completion_probabilities

    def score_inside(self, asked: Wanted) -> Request:
        """Return the request to score the last of `asked.ids` if it ends inside a character."""
        # Made to write ASCII instead, the server reports candidates, and the id may be one of them.
        plain = {**GREEDY, "grammar": "root ::= [ -~]+"}
        request = self.complete(asked._replace(ids=asked.ids[:-1], n=1, drawn=plain))
        return request.having(n_probs=self.top)

    def scored_inside(self, data: bytes, token: int) -> Completion:
        """Return a `Completion` with the verdict on `token`, from a reply to `score_inside`.

        A token outside the 100 likeliest gets the logprob of the 100th, as a bound. Raises `Fault`.
        """
        told, rows = self.completed(data), decoded(data, _Reply).completion_probabilities
        own = tuple(logprob_of(token, _pairs(row), self.top) for row in rows)
        return verification_of([token], replace(told, ids=(token,), logprobs=own), written=1)

    def prefill(self, ids: Sequence[int], model: str | None) -> Request:
        """Return the request that only puts `ids` in a slot's KV cache; `slot` reads the reply."""
        body = {"prompt": ids, "n_predict": 0, "response_fields": ["timings", "id_slot"]}
        return Request("/completion", {**body, **_named(model)}, ids)

    def slot(self, data: bytes) -> tuple[int, int | None]:
        """Return the number of the slot that replied, and how many prompt tokens it had cached.

        They are -1 and None if the reply (to `complete` or `prefill`) lacks them. Raises `Fault`.
        """
        reply = decoded(data, _Reply)
        return reply.id_slot, reply.timings.cache_n

    def props(self, model: str | None) -> Request:
        """Return the request for the properties (`Props`) of `model` (None: of the server)."""
        return Request(f"/props?{urlencode(_named(model))}".removesuffix("?"))

    def tokenize(self, text: str, model: str | None) -> Request:
        body = {"content": text, "add_special": False, "parse_special": False, **_named(model)}
        return Request("/tokenize", body)

    def detokenize(self, ids: Sequence[int], model: str | None) -> Request:
        return Request("/detokenize", {"tokens": ids, **_named(model)})

    def describe(
        self, url: str, model: str | None, context: int | None, *replies: bytes | None
    ) -> ServedModel | None:
        props, listed = optional(replies[0], Props), optional(replies[1], ListedModels)
        held = props and props.default_generation_settings.n_ctx
        if not props or not props.model_path or not props.total_slots or not held:
            return None
        entries = listed.data if listed else []
        meta = next((entry.meta for entry in entries if entry.meta), None)
        if model is not None:
            chosen(url, model, [entry.id for entry in entries])
        return ServedModel(
            props.model_path.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf"),
            props.model_path,
            # One position is for the token that the server writes.
            fitting(context, held - 1),
            props.total_slots,
            meta and meta.n_vocab,
            meta.n_embd if meta else 0,
            meta and meta.n_params,
        )

    def stream(self, asked: WantedStream) -> Request:
        body = {"prompt": asked.prompt, "n_predict": asked.tokens, "n_probs": asked.top}
        body |= {"samplers": ["temperature"], **GREEDY, "seed": asked.seed, "stream": asked.stream}
        return Request("/completion", {**body, "cache_prompt": True, "return_tokens": True})

    def streamed(self, data: bytes) -> Event | None:
        whole = data.startswith(b"{")
        if not whole and not data.startswith(b"data: "):
            return None
        reply = decoded(data.removeprefix(b"data: "), _Reply)
        rows = reply.completion_probabilities
        # A whole reply may have the row of an end token whose id it leaves out.
        known = len(rows) == 1 and (whole or reply.tokens == [rows[0].id])
        told = [NextToken(row.id, _pairs(row)) for row in rows if known]
        return Event(told, so_far=reply.tokens_predicted)

    def single(self, asked: WantedStream, end: int) -> Request | None:
        # Inside a character the server keeps its candidates back until the character is whole. An
        # end token is a whole text, so it is made to write one; candidates come without that bias.
        return self.stream(asked).having(logit_bias=[[end, _CERTAIN]])

    def metered(self, data: bytes) -> tuple[int, int | None]:
        timings = decoded(data, _Reply).timings
        return metered(timings.cache_n, timings.prompt_n) or 0, timings.prompt_n

    def slots(self, data: bytes | None) -> list[tuple[object, int | None]]:
        return [
            (slot.params.get("seed"), next((one.n_decoded for one in slot.next_token), None))
            for slot in optional(data, list[_Slot]) or []
            if slot.is_processing
        ]


class LlamaCppText(TextServer):
    """llama-server, by text: `/apply-template` renders messages, `/completion` continues."""

    name, owner, prompts, names = "llama-server", "llamacpp", True, False

    def control(self, text: str) -> str | None:
        sign = _SIGN.search(text)
        return sign and sign[0]

    def template(self, turns: list[dict[str, Any]], *, thinks: bool) -> Request | None:
        thinking = {"enable_thinking": thinks}
        return Request("/apply-template", {"messages": turns, "chat_template_kwargs": thinking})

    def templated(self, data: bytes) -> str:
        return decoded(data, _Prompt).prompt

    def complete(self, asked: WantedText) -> Request:
        body = {"prompt": asked.text, "n_predict": asked.n, "cache_prompt": True}
        fields = ["content", "stop_type", "timings"]
        return Request("/completion", {**body, "response_fields": fields, **ordered(asked.drawn)})

    def continued(self, data: bytes) -> TextContinuation:
        reply = decoded(data, _Reply)
        if reply.content is None:
            raise Fault("a reply without text")
        meter = reply.timings
        prompt = metered(meter.cache_n, meter.prompt_n)
        ended = was_ended(reply.stop_type)
        return TextContinuation(reply.content, ended, prompt, meter.cache_n, meter.predicted_n)


def ordered(drawn: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sampling fields `drawn` and, unless greedy, `samplers`: the order of their use."""
    if "top_p" not in drawn:
        return drawn
    # In the order in which Edgewise applies them, the temperature first.
    return {**drawn, "samplers": ["temperature", "top_k", "top_p", "min_p"]}


def _named(model: str | None) -> dict[str, str]:
    """Return the field with the model's name, by which a server of several models chooses."""
    return {} if model is None else {"model": model}


def _pairs(row: _Row) -> list[tuple[int, float | None]]:
    return [(top.id, top.logprob) for top in row.top_logprobs]
