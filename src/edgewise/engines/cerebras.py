"""The large model at Cerebras' API: `POST /v1/completions` with ids, and ids back on demand.

Written from its documents and its SDK (cerebras-cloud-sdk 1.91.0); never tried against the API
itself.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from edgewise.completion import Completion
from edgewise.engines.base import NOBODY, Client
from edgewise.engines.completions import COMPLETIONS, Meter, has_ended, only
from edgewise.engines.hosted import HostedEngine
from edgewise.engines.http import decoded
from edgewise.errors import CloudProtocolError, CloudRejected
from edgewise.sampling import Sampling


class _Choice(msgspec.Struct):
    tokens: list[int] | None = None
    finish_reason: str | None = None


class _Times(msgspec.Struct):
    total_time: float | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Meter | None = None
    time_info: _Times | None = None


class CerebrasEngine(HostedEngine):
    """Implements `Engine`. Log-probs come by text, so there are none here, and no candidates.

    Draws know neither top-k nor min-p: a consult that wants them is declined.
    """

    dialect = "Cerebras"

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        body: dict[str, Any] = {
            "model": await self.model_name(),
            "prompt": ids,
            "max_tokens": n,
            "return_raw_tokens": True,
            **_sampling_fields(sampling, len(ids)),
        }
        if client.session:
            body["prompt_cache_key"] = client.session
        answered = await self.post(COMPLETIONS, body, client, ids=len(ids))
        reply = decoded(answered, _Completion, self.dialect)
        choice, usage = only(reply.choices, self.dialect), reply.usage or Meter()
        stopped = has_ended(choice.finish_reason, self.dialect)
        if choice.tokens is None:
            raise CloudProtocolError(f"{self.url!r} sent a completion without its token ids.")
        return Completion(
            ids=tuple(choice.tokens),
            logprobs=(None,) * len(choice.tokens),
            stopped=stopped,
            cached=usage.cached,
            computed=usage.computed,
            prompt=usage.prompt_tokens,
            engine_seconds=reply.time_info.total_time if reply.time_info else None,
        )

    async def read(self, text: str) -> list[int] | None:
        """As `HostedEngine.read`: what is echoed, where the meter counts as many tokens."""
        body = {
            "model": await self.model_name(),
            "prompt": text,
            "max_tokens": 1,
            "temperature": 0,
            "return_raw_tokens": True,
            "echo": True,
        }
        reply = decoded(await self.post(COMPLETIONS, body), _Completion, self.dialect)
        tokens, usage = only(reply.choices, self.dialect).tokens, reply.usage or Meter()
        prompt, written = usage.prompt_tokens, usage.completion_tokens
        if tokens is None or prompt is None or written is None or len(tokens) != prompt + written:
            return None
        return tokens[:prompt]


def _sampling_fields(sampling: Sampling, position: int) -> dict[str, Any]:
    if sampling.greedy:
        return {"temperature": 0}
    if sampling.top_k or sampling.min_p:
        raise CloudRejected("Cerebras draws without top-k and min-p", hint="leave them out")
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed_at(position),
    }
