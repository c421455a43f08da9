"""The large model behind SGLang: `POST /generate`, token ids both ways."""

from collections.abc import Sequence
from typing import Any

import msgspec

from edgewise.completion import Completion
from edgewise.engines.base import (
    NOBODY,
    TOP,
    Client,
    Described,
    candidates,
    for_each,
    has_ended,
    of_kept,
    sampling_fields,
    side_by_side,
    uncached,
)
from edgewise.engines.http import HttpEngine, decoded, described, served_model
from edgewise.errors import CloudError, CloudProtocolError, CloudRejected
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


class _Generated(msgspec.Struct):
    output_ids: list[int]
    meta_info: _Meta


class _Info(msgspec.Struct):
    model_path: str | None = None
    tokenizer_path: str | None = None


class SglangEngine(HttpEngine):
    """Implements `Engine`. Its prefix cache is exact to the token."""

    dialect, owner = "SGLang", "sglang"

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        body: dict[str, Any] = {
            "input_ids": ids,
            "sampling_params": {
                "max_new_tokens": n,
                "skip_special_tokens": False,
                **_sampling_fields(sampling, len(ids)),
            },
            "return_logprob": True,
            "top_logprobs_num": TOP,
        }
        if client.session:
            body["routing_key"] = client.session
        if client.salt and self.abilities.salt:
            body["cache_salt"] = client.salt
        answered = await self.post("/generate", body, client, ids=len(ids))
        reply = decoded(answered, _Generated, self.dialect)
        return _completion(reply)

    async def describe(self) -> Described:
        """As `Engine.describe`; its short form would answer as the model without an adapter."""
        if self.model is None:
            return await super().describe()
        served = await served_model(self)
        if base := served.parent:
            raise CloudRejected(
                f"{self.model!r} at {self.url!r} is an adapter of {base!r}",
                hint=f"name {base!r}",
                setting="cloud_model",
            )
        return described(served)

    async def loaded_from(self) -> list[str | None]:
        try:
            told = decoded(await self.get("/get_model_info"), _Info, self.dialect)
        except (CloudProtocolError, CloudRejected):
            return []
        return [told.tokenizer_path, told.model_path]

    async def has_salt(self, ids: Sequence[int]) -> bool:
        """As `Engine.has_salt`; who takes a number for a salt does not know what it is."""
        async with side_by_side() as requests:
            taken = requests.begin(self._takes(ids, "edgewise-probe"))
            no_salt = requests.begin(self._takes(ids, 0))
        return taken.result() and not no_salt.result()

    async def _takes(self, ids: Sequence[int], salt: object) -> bool:
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "cache_salt": salt,
        }
        try:
            await self.post("/generate", body)
        except CloudError:
            return False
        return True


def _completion(reply: _Generated) -> Completion:
    ids, meta = reply.output_ids, reply.meta_info
    ended = meta.finish_reason.type if meta.finish_reason else None
    stopped = has_ended(ended, SglangEngine.dialect)
    logprobs = [row[0] for row in meta.output_token_logprobs]
    return Completion(
        ids=tuple(ids),
        logprobs=for_each(ids, logprobs, stopped=stopped),
        top=tuple(
            candidates([(row[1], row[0]) for row in top or []])
            for top in of_kept(ids, meta.output_top_logprobs, stopped=stopped)
        ),
        stopped=stopped,
        cached=meta.cached_tokens,
        computed=uncached(meta.prompt_tokens, meta.cached_tokens),
        prompt=meta.prompt_tokens,
        engine_seconds=meta.e2e_latency,
    )


def _sampling_fields(sampling: Sampling, position: int) -> dict[str, Any]:
    """SGLang's own words for no top-k and for the seed."""
    fields = sampling_fields(sampling, position)
    if not sampling.greedy:
        fields["top_k"] = sampling.top_k or -1
        fields["sampling_seed"] = fields.pop("seed")
    return fields
