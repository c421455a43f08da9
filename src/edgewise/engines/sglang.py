"""The large model behind SGLang: `POST /generate`, token ids both ways."""

from collections.abc import Sequence
from typing import Any

import msgspec

from edgewise.completion import Completion
from edgewise.engines.base import NOBODY, TOP, Client, Described, decoded
from edgewise.engines.http import HttpEngine, served_model
from edgewise.engines.replies import completion_of, has_ended, sampling_fields, verification_of
from edgewise.errors import CloudRejected
from edgewise.sampling import Sampling

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


class SglangEngine(HttpEngine):
    """Implements `Engine`. Its prefix cache is exact to the token."""

    dialect, owner, verifies, reads_once = "SGLang", "sglang", True, True

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        parameters = {"max_new_tokens": n, "skip_special_tokens": False}
        parameters |= _sampling_fields(sampling, len(ids))
        body = {"input_ids": ids, "sampling_params": parameters, "top_logprobs_num": TOP}
        reply = await self._generated(body, client)
        meta = reply.meta_info
        tops = meta.output_top_logprobs
        return self._told(reply.output_ids, meta.output_token_logprobs, tops, meta)

    async def verify(
        self, ids: Sequence[int], count: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        """See `Engine.verify`. One prefill; the cache serves all before the id before them."""
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "top_logprobs_num": 1,
            # Of the id at the start it tells nothing.
            "logprob_start_len": len(ids) - count - 1,
        }
        meta = (await self._generated(body, client)).meta_info
        block, rows = ids[-count:], meta.input_token_logprobs[1:]
        # It calls the last id of its vocabulary 0.
        named = [token or sent for (_, token, _), sent in zip(rows, block, strict=False)]
        told = self._told(named, rows, meta.input_top_logprobs[1:], meta)
        return verification_of(block, told, self.url, written=1)

    async def _generated(self, body: dict[str, Any], client: Client) -> _Generated:
        body["return_logprob"] = True
        if client.session:
            body["routing_key"] = client.session
        if client.salt and self.salted:
            body["cache_salt"] = client.salt
        answered = await self.post("/generate", body, client, ids=len(body["input_ids"]))
        return decoded(answered, _Generated, self.dialect)

    def _told(
        self,
        ids: Sequence[int],
        rows: Sequence[_Logprob],
        tops: Sequence[list[_Logprob] | None],
        meta: _Meta,
    ) -> Completion:
        return completion_of(
            ids,
            [logprob for logprob, _, _ in rows],
            [[(token, logprob) for logprob, token, _ in top or []] for top in tops],
            stopped=has_ended(meta.finish_reason.type if meta.finish_reason else None, self.url),
            prompt=meta.prompt_tokens,
            cached=meta.cached_tokens,
            seconds=meta.e2e_latency,
        )

    async def describe(self) -> Described:
        """See `Engine.describe`. Refuses an adapter: requests would be answered without it."""
        if self.model is None:
            return await super().describe()
        served = await served_model(self)
        if base := served.parent:
            raise CloudRejected(
                f"{self.model!r} at {self.url!r} is an adapter of {base!r}",
                hint=f"name {base!r}",
                setting="cloud_model",
            )
        return served.described

    async def has_salt(self, ids: Sequence[int]) -> bool:
        greedy = {"max_new_tokens": 1, "temperature": 0}
        return await self.knows_salt("/generate", {"input_ids": ids, "sampling_params": greedy})


def _sampling_fields(sampling: Sampling, position: int) -> dict[str, Any]:
    """SGLang's own words for no top-k and for the seed."""
    fields = sampling_fields(sampling, position)
    if not sampling.greedy:
        fields["top_k"] = sampling.top_k or -1
        fields["sampling_seed"] = fields.pop("seed")
    return fields
