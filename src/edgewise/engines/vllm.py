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
from edgewise.engines.replies import (
    Meter,
    completion_of,
    has_ended,
    only,
    sampling_fields,
    verification_of,
)
from edgewise.errors import CloudProtocolError
from edgewise.sampling import Sampling

# The most that a server reports, unless it is told otherwise (`--max-logprobs`).
_MOST = 20

# Python itself refuses to read numbers that are much longer.
_ID = re.compile(r"token_id:([0-9]{1,20})")


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None

    @property
    def tops(self) -> list[list[tuple[int, float | None]]]:
        """Candidates for each token."""
        rows = self.top_logprobs or []
        return [[(id_of(token), value) for token, value in (row or {}).items()] for row in rows]


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None
    finish_reason: str | None = None
    index: int = 0


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    usage: Meter | None = None


class VllmEngine(HttpEngine):
    """Implements `Engine`."""

    dialect, owner, verifies = "vLLM", "vllm", True

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        fields = {"max_tokens": n, "logprobs": TOP, **sampling_fields(sampling, len(ids))}
        reply = await self._completed({"prompt": ids, **fields}, len(ids), client)
        choice = only(reply.choices, self.url)
        written, meter = _written(choice), reply.usage or Meter()
        return completion_of(
            [id_of(token) for token in written.tokens],
            written.token_logprobs,
            written.tops,
            stopped=has_ended(choice.finish_reason, self.url),
            prompt=meter.prompt_tokens,
            cached=meter.cached,
        )

    async def verify(
        self, ids: Sequence[int], count: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        """See `Engine.verify`. One request with a prompt for each, and a token written for each.

        The cache serves all of them but its last block. An id that is not among the 20 likeliest
        has the logprob of the last of these: an upper bound.
        """
        prompts = [ids[:end] for end in range(len(ids) - count, len(ids))]
        asked = {"prompt": prompts, "max_tokens": 1, "logprobs": _MOST, "temperature": 0}
        reply = await self._completed(asked, sum(map(len, prompts)), client)
        choices = sorted(reply.choices, key=lambda choice: choice.index)
        if [choice.index for choice in choices] != [*range(count)]:
            raise CloudProtocolError(f"{self.url!r} did not answer each of {count} prompts once.")
        tops = [next(iter(_written(choice).tops), []) for choice in choices]
        block, prompt = ids[-count:], (reply.usage or Meter()).prompt_tokens
        own = [_logprob(token, top) for token, top in zip(block, tops, strict=True)]
        # Of the cached ones it counts those of the last prompt alone.
        told = completion_of(block, own, tops, stopped=False, prompt=prompt, cached=None)
        return verification_of(block, told, self.url, written=count)

    async def _completed(self, asked: dict[str, Any], sent: int, client: Client) -> _Reply:
        body = {
            "model": await self.model_name(),
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            **asked,
        }
        if client.salt and self.salted:
            body["cache_salt"] = client.salt
        answered = await self.post(COMPLETIONS, body, client, ids=sent)
        return decoded(answered, _Reply, self.dialect)

    async def describe(self) -> Described:
        """See `Engine.describe`. vLLM's requests require a model name, so this finds it."""
        return (await served_model(self)).described

    async def has_salt(self, ids: Sequence[int]) -> bool:
        fields = {"model": await self.model_name(), "prompt": ids, "max_tokens": 1}
        return await self.knows_salt(COMPLETIONS, fields)


def _written(choice: _Choice) -> _Logprobs:
    if choice.logprobs is None:
        raise CloudProtocolError("vLLM sent a completion without its token ids.")
    return choice.logprobs


def _logprob(token: int, top: Sequence[tuple[int, float | None]]) -> float | None:
    """That of the id, at most the last candidate's; None where too few say too little."""
    known = {one: value for one, value in top if value is not None}
    return known.get(token, min(known.values()) if len(known) >= _MOST else None)


def id_of(token: str) -> int:
    """`token_id:123` is 123. Raises `CloudProtocolError`."""
    match = _ID.fullmatch(token)
    if match is None:
        raise CloudProtocolError("vLLM sent tokens as text where ids were asked for.")
    return int(match[1])
