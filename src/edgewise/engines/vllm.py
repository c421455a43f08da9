"""The large model behind vLLM: `POST /v1/completions`, token ids both ways.

The cache meter needs the server flag `--enable-prompt-tokens-details`.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from edgewise.completion import Completion
from edgewise.engines.base import COMPLETIONS, NOBODY, TOP, Client, Described, decoded
from edgewise.engines.http import HttpEngine, served_model
from edgewise.engines.replies import Meter, completion_of, has_ended, only, sampling_fields
from edgewise.errors import CloudProtocolError
from edgewise.sampling import Sampling

# Python itself refuses to read numbers that are much longer.
_ID = re.compile(r"token_id:([0-9]{1,20})")


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    usage: Meter | None = None


class VllmEngine(HttpEngine):
    """Implements `Engine`."""

    dialect, owner = "vLLM", "vllm"

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        salt = {"cache_salt": client.salt} if client.salt and self.salted else {}
        body: dict[str, Any] = {
            "model": await self.model_name(),
            "prompt": ids,
            "max_tokens": n,
            "logprobs": TOP,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            **sampling_fields(sampling, len(ids)),
            **salt,
        }
        answered = await self.post(COMPLETIONS, body, client, ids=len(ids))
        reply = decoded(answered, _Reply, self.dialect)
        choice = only(reply.choices, self.url)
        if choice.logprobs is None:
            raise CloudProtocolError(f"{self.url!r} sent a completion without its token ids.")
        written, meter = choice.logprobs, reply.usage or Meter()
        return completion_of(
            [id_of(token) for token in written.tokens],
            written.token_logprobs,
            [
                [(id_of(token), logprob) for token, logprob in (top or {}).items()]
                for top in written.top_logprobs or []
            ],
            stopped=has_ended(choice.finish_reason, self.url),
            prompt=meter.prompt_tokens,
            cached=meter.cached,
        )

    async def describe(self) -> Described:
        """See `Engine.describe`. vLLM's requests require a model name, so this finds it."""
        return (await served_model(self)).described

    async def has_salt(self, ids: Sequence[int]) -> bool:
        fields = {"model": await self.model_name(), "prompt": ids, "max_tokens": 1}
        return await self.knows_salt(COMPLETIONS, fields)


def id_of(token: str) -> int:
    """`token_id:123` is 123. Raises `CloudProtocolError`."""
    match = _ID.fullmatch(token)
    if match is None:
        raise CloudProtocolError("vLLM sent tokens as text where ids were asked for.")
    return int(match[1])
