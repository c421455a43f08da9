"""Description of SGLang's HTTP API: `POST /generate`, which takes and returns token ids."""

from collections.abc import Sequence
from typing import Any

import msgspec

from edgewise.completion import Completion
from edgewise.servers.base import GREEDY, IdServer, Request, Wanted, decoded
from edgewise.servers.replies import TOP, completion_of, has_ended, verification_of

_Logprob = tuple[float | None, int, str | None]


class _Finish(msgspec.Struct):
    type: str


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    e2e_latency: float | None = None
    output_token_logprobs: list[_Logprob] = []
    output_top_logprobs: list[list[_Logprob] | None] = []
    input_token_logprobs: list[_Logprob] = []
    input_top_logprobs: list[list[_Logprob] | None] = []


class _Generated(msgspec.Struct):
    output_ids: list[int]
    meta_info: _Meta


class SglangServer(IdServer):
    """SGLang as a cloud model's server. By default it reuses cached prefixes of any length."""

    name, owner, verifies, reads_once, salts, adapts = "SGLang", "sglang", True, True, True, False

    def complete(self, asked: Wanted) -> Request:
        parameters = {"max_new_tokens": asked.n, "skip_special_tokens": False, **asked.drawn}
        if "seed" in parameters:
            # Its own words for the seed and for no top-k.
            parameters["sampling_seed"] = parameters.pop("seed")
            parameters["top_k"] = parameters["top_k"] or -1
        return _request(asked, parameters, top_logprobs_num=TOP)

    def completed(self, data: bytes) -> Completion:
        reply = decoded(data, _Generated)
        meta = reply.meta_info
        return _told(reply.output_ids, meta.output_token_logprobs, meta.output_top_logprobs, meta)

    def score(self, asked: Wanted) -> Request:
        """Return the request for the logprobs of the last `asked.n` ids; it takes one prefill."""
        # The first id of the scored range gets no logprob, so the range begins one id earlier.
        start = len(asked.ids) - asked.n - 1
        parameters = {"max_new_tokens": 1, **GREEDY}
        return _request(asked, parameters, top_logprobs_num=1, logprob_start_len=start)

    def scored(self, data: bytes, block: Sequence[int]) -> Completion:
        meta = decoded(data, _Generated).meta_info
        rows = meta.input_token_logprobs[1:]
        # It calls the last id of its vocabulary 0.
        named = [token or sent for (_, token, _), sent in zip(rows, block, strict=False)]
        told = _told(named, rows, meta.input_top_logprobs[1:], meta)
        return verification_of(block, told, written=1)


def _request(asked: Wanted, parameters: dict[str, Any], **fields: object) -> Request:
    fields |= {"input_ids": asked.ids, "sampling_params": parameters, "return_logprob": True}
    if asked.session:
        fields["routing_key"] = asked.session
    if asked.salt is not None:
        fields["cache_salt"] = asked.salt
    return Request("/generate", fields, asked.ids)


def _told(
    ids: Sequence[int],
    rows: Sequence[_Logprob],
    tops: Sequence[list[_Logprob] | None],
    meta: _Meta,
) -> Completion:
    return completion_of(
        ids,
        [logprob for logprob, _, _ in rows],
        [[(token, logprob) for logprob, token, _ in top or []] for top in tops],
        stopped=has_ended(meta.finish_reason.type if meta.finish_reason else None),
        prompt=meta.prompt_tokens,
        cached=meta.cached_tokens,
        seconds=meta.e2e_latency,
    )
