"""The large model at Fireworks' API: `POST /v1/completions` with ids, which come back as well.

Written from its documents and its SDK (fireworks-ai 1.2.30); never tried against the API itself.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from edgewise.completion import Completion
from edgewise.engines.base import (
    NOBODY,
    TOP,
    Client,
    candidates,
    for_each,
    of_kept,
    sampling_fields,
    side_by_side,
)
from edgewise.engines.completions import COMPLETIONS, Meter, has_ended, only
from edgewise.engines.hosted import HostedEngine
from edgewise.engines.http import decoded
from edgewise.errors import CloudError, CloudProtocolError
from edgewise.sampling import Sampling


class _Top(msgspec.Struct):
    token_id: int
    logprob: float | None = None


class _Token(msgspec.Struct):
    token_id: int
    logprob: float | None = None
    top_logprobs: list[_Top] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Meter | None = None


class FireworksEngine(HostedEngine):
    """Implements `Engine`. Its cache is kept by session, and apart by an isolation key."""

    dialect = "Fireworks"

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        body: dict[str, Any] = {
            "model": await self.model_name(),
            "prompt": ids,
            "max_tokens": n,
            "return_token_ids": True,
            "logprobs": True,
            "top_logprobs": TOP,
            **sampling_fields(sampling, len(ids)),
        }
        if client.session:
            body["prompt_cache_key"] = client.session
        if client.salt and self.abilities.salt:
            body["prompt_cache_isolation_key"] = client.salt
        answered = await self.post(COMPLETIONS, body, client, ids=len(ids))
        reply = decoded(answered, _Completion, self.dialect)
        choice = only(reply.choices, self.dialect)
        if choice.prompt_token_ids not in (None, list(ids)):
            raise CloudProtocolError(f"{self.url!r} read other token ids than it was sent.")
        return self._completion(choice, reply.usage or Meter())

    async def read(self, text: str) -> list[int] | None:
        """As `HostedEngine.read`, for a token that is dropped."""
        body = {
            "model": await self.model_name(),
            "prompt": text,
            "max_tokens": 1,
            "temperature": 0,
            "return_token_ids": True,
        }
        reply = decoded(await self.post(COMPLETIONS, body), _Completion, self.dialect)
        return only(reply.choices, self.dialect).prompt_token_ids

    async def has_salt(self, ids: Sequence[int]) -> bool:
        """As `Engine.has_salt`; who takes a number for one does not know what it is."""
        async with side_by_side() as requests:
            taken = requests.begin(self._takes(ids, "edgewise-probe"))
            no_salt = requests.begin(self._takes(ids, 0))
        return taken.result() and not no_salt.result()

    async def _takes(self, ids: Sequence[int], salt: object) -> bool:
        body = {
            "model": await self.model_name(),
            "prompt": list(ids),
            "max_tokens": 1,
            "prompt_cache_isolation_key": salt,
        }
        try:
            await self.post(COMPLETIONS, body)
        except CloudError:
            return False
        return True

    def _completion(self, choice: _Choice, usage: Meter) -> Completion:
        rows = (choice.logprobs.content if choice.logprobs else None) or []
        stopped = has_ended(choice.finish_reason, self.dialect)
        ids = choice.token_ids
        if ids is None:
            if not rows:
                raise CloudProtocolError(f"{self.url!r} sent a completion without its token ids.")
            ids = [row.token_id for row in rows]
        tops = [[(top.token_id, top.logprob) for top in row.top_logprobs or []] for row in rows]
        return Completion(
            ids=tuple(ids),
            logprobs=for_each(ids, [row.logprob for row in rows], stopped=stopped),
            top=tuple(candidates(top) for top in of_kept(ids, tops, stopped=stopped)),
            stopped=stopped,
            cached=usage.cached,
            computed=usage.computed,
            prompt=usage.prompt_tokens,
        )
