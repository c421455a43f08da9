"""The large model behind a llama-server: `POST /completion`, token ids both ways."""

from collections.abc import Sequence
from typing import Any

import msgspec

from edgewise.engines.base import NOBODY, TOP, Client, candidates, sampling_fields
from edgewise.engines.http import HttpEngine, decoded
from edgewise.sampling import Sampling
from edgewise.verdict import Verdict

# Without it the reply echoes the prompt.
_FIELDS = ["tokens", "completion_probabilities", "timings", "stop_type"]

# In the order in which Edgewise applies them.
_SAMPLERS = ["temperature", "top_k", "top_p", "min_p"]


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


class LlamaServerEngine(HttpEngine):
    """Implements `Engine`. It has no salt and no priority; the prefix cache is per slot."""

    dialect = "llama-server"

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Verdict:
        body: dict[str, Any] = {
            "prompt": ids,
            "n_predict": n,
            "cache_prompt": True,
            "return_tokens": True,
            "n_probs": TOP,
            "response_fields": _FIELDS,
            **sampling_fields(sampling, len(ids)),
        }
        if not sampling.greedy:
            body["samplers"] = _SAMPLERS
        answered = await self.post("/completion", body, client, ids=len(ids))
        reply = decoded(answered, _Completion, self.dialect)
        return _verdict(reply)

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        body = {"prompt": ids, "n_predict": 0, "cache_prompt": True}
        await self.post("/completion", body, client, ids=len(ids))

    async def tokenize(self, text: str) -> list[int] | None:
        return await self.tokens({"content": text, "add_special": False, "parse_special": False})


def _verdict(reply: _Completion) -> Verdict:
    ids = reply.tokens
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
