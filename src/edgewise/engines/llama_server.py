"""The large model behind a llama-server: `POST /completion`, token ids both ways."""

from collections.abc import Sequence
from typing import Any

import msgspec

from edgewise.engines.base import (
    NOBODY,
    TOP,
    Client,
    Engine,
    candidates,
    decoded,
    name_if_told,
)
from edgewise.sampling import Sampling
from edgewise.verdict import Verdict

# Without it the reply echoes the prompt.
_FIELDS = ["tokens", "completion_probabilities", "timings", "stop_type"]


class _TopLogprob(msgspec.Struct):
    id: int
    logprob: float | None = None


class _Probability(msgspec.Struct):
    id: int
    logprob: float | None = None
    top_logprobs: list[_TopLogprob] = []


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0


class _Completion(msgspec.Struct):
    tokens: list[int]
    completion_probabilities: list[_Probability] = []
    timings: _Timings | None = None
    stop_type: str = "limit"


class _Tokens(msgspec.Struct):
    tokens: list[int]


class LlamaServerEngine(Engine):
    """Implements `Engine`. It has no salt and no priority; the prefix cache is per slot."""

    dialect = "llama-server"

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Verdict:
        body = {
            "prompt": ids,
            "n_predict": n,
            "cache_prompt": True,
            "return_tokens": True,
            "n_probs": TOP,
            "response_fields": _FIELDS,
            **_sampling_fields(sampling, len(ids)),
        }
        answered = await self.post("/completion", body, client, ids=len(ids))
        reply = decoded(answered, _Completion, self.dialect)
        return _verdict(reply, n)

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        body = {"prompt": ids, "n_predict": 0, "cache_prompt": True}
        await self.post("/completion", body, client)

    async def tokenize(self, text: str) -> list[int] | None:
        body = {"content": text, "add_special": False, "parse_special": False}
        return decoded(await self.post("/tokenize", body), _Tokens, self.dialect).tokens

    async def model_name(self) -> str | None:
        return await name_if_told(self)


def _verdict(reply: _Completion, n: int) -> Verdict:
    ids = reply.tokens[:n]
    known = {p.id: p for p in reply.completion_probabilities}
    rows = [known.get(token) for token in ids]
    timings = reply.timings or _Timings()
    return Verdict(
        ids=tuple(ids),
        logprobs=tuple(row.logprob if row else None for row in rows),
        top=tuple(
            candidates([(top.id, top.logprob) for top in row.top_logprobs] if row else [])
            for row in rows
        ),
        stopped=reply.stop_type == "eos",
        cached=timings.cache_n,
        computed=timings.prompt_n,
        engine_seconds=(timings.prompt_ms + timings.predicted_ms) / 1000,
    )


def _sampling_fields(sampling: Sampling, position: int) -> dict[str, Any]:
    if sampling.greedy:
        return {"temperature": 0}
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": sampling.seed_at(position),
        "samplers": ["temperature", "top_k", "top_p", "min_p"],
    }
