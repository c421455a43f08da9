"""The large model behind vLLM: `POST /inference/v1/generate`, or `/v1/completions` with ids.

The first form needs the server flag `--enable-scale-out`; where it is closed the second does the
same with a longer reply. The cache meter needs `--enable-prompt-tokens-details`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from edgewise.completion import Completion
from edgewise.engines.base import (
    COMPLETIONS,
    NOBODY,
    TOP,
    Abilities,
    Client,
    Described,
    Meter,
    Priority,
    candidates,
    for_each,
    has_ended,
    of_kept,
    only,
    sampling_fields,
    side_by_side,
)
from edgewise.engines.http import HttpEngine, decoded, described, served_model
from edgewise.errors import CloudError, CloudProtocolError, CloudRefused, CloudRejected
from edgewise.sampling import Sampling

GENERATE = "/inference/v1/generate"
_ID = "token_id:"
# Of any id; Python itself refuses to read numbers that are much longer.
_DIGITS = 20


class _Top(msgspec.Struct):
    logprob: float | None = None
    token_id: int | None = None
    token: str | None = None


class _Token(msgspec.Struct):
    logprob: float | None = None
    top_logprobs: list[_Top] = []


class _Content(msgspec.Struct):
    content: list[_Token] | None = None


class _Generated(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Content | None = None
    finish_reason: str | None = None


class _Generation(msgspec.Struct):
    choices: list[_Generated]
    usage: Meter | None = None


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Completed(msgspec.Struct):
    logprobs: _Logprobs | None
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Completed]
    usage: Meter | None = None


class VllmEngine(HttpEngine):
    """Implements `Engine`."""

    dialect, owner = "vLLM", "vllm"

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        super().__init__(url, key=key, model=model)
        self._path: str | None = None
        self._finding = asyncio.Lock()

    async def probe(self) -> Abilities:
        # It may have been started anew, with other flags.
        self._path = None
        return await super().probe()

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        if self._path is None:
            async with self._finding:
                # Who waited here finds it found.
                if self._path is None:
                    return await self._first(ids, n, sampling, client)
        if self._path == GENERATE:
            return await self._generate(ids, n, sampling, client)
        return await self._complete(ids, n, sampling, client)

    async def describe(self) -> Described:
        """As `Engine.describe`; its requests need the name."""
        return described(await served_model(self))

    async def priority(self, ids: Sequence[int]) -> Priority:
        """Lower goes first, where the server was started with `--scheduling-policy priority`."""
        return "lower first" if await self._accepts(ids, priority=1) else "none"

    async def has_salt(self, ids: Sequence[int]) -> bool:
        """As `Engine.has_salt`; who takes a number for a salt does not know what it is."""
        async with side_by_side() as requests:
            taken = requests.begin(self._accepts(ids, cache_salt="edgewise-probe"))
            no_salt = requests.begin(self._accepts(ids, cache_salt=0))
        return taken.result() and not no_salt.result()

    async def _accepts(self, ids: Sequence[int], **fields: Any) -> bool:
        try:
            await self._complete(ids, 1, Sampling(), NOBODY, fields)
        except CloudError:
            return False
        return True

    async def _first(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client
    ) -> Completion:
        """Find out whether the short form is open."""
        try:
            completion = await self._generate(ids, n, sampling, client)
        except (CloudRejected, CloudRefused):
            completion = await self._complete(ids, n, sampling, client)
            self._path = COMPLETIONS
        else:
            self._path = GENERATE
        return completion

    def _of(self, client: Client) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if client.salt and self.abilities.salt:
            fields["cache_salt"] = client.salt
        if self.abilities.priority != "none":
            fields["priority"] = 0 if client.urgent else 1
        return fields

    async def _generate(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client
    ) -> Completion:
        wanted = {"max_tokens": n, "logprobs": TOP, "detokenize": False}
        body = {
            "token_ids": ids,
            "sampling_params": {**wanted, **sampling_fields(sampling, len(ids))},
            **self._of(client),
        }
        if self.model is not None:
            body["model"] = self.model
        answered = await self.post(GENERATE, body, client, ids=len(ids))
        reply = decoded(answered, _Generation, self.dialect)
        choice = only(reply.choices, self.dialect)
        rows = (choice.logprobs.content if choice.logprobs else None) or []
        tops = [[(_top_id(top), top.logprob) for top in row.top_logprobs] for row in rows]
        logprobs = [row.logprob for row in rows]
        return _completion(choice.token_ids, logprobs, tops, choice.finish_reason, reply.usage)

    async def _complete(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        client: Client,
        more: dict[str, Any] | None = None,
    ) -> Completion:
        body = {
            "model": await self.model_name(),
            "prompt": ids,
            "max_tokens": n,
            "logprobs": TOP,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            **sampling_fields(sampling, len(ids)),
            **self._of(client),
            **(more or {}),
        }
        answered = await self.post(COMPLETIONS, body, client, ids=len(ids))
        reply = decoded(answered, _Completion, self.dialect)
        choice = only(reply.choices, self.dialect)
        if choice.logprobs is None:
            raise CloudProtocolError(f"{self.url!r} sent a completion without its token ids.")
        found = choice.logprobs
        tops = [
            [(id_of(token), logprob) for token, logprob in (top or {}).items()]
            for top in found.top_logprobs or []
        ]
        written = [id_of(token) for token in found.tokens]
        return _completion(written, found.token_logprobs, tops, choice.finish_reason, reply.usage)


def _completion(
    ids: Sequence[int],
    logprobs: Sequence[float | None],
    tops: Sequence[Sequence[tuple[int, float | None]]],
    finish_reason: str | None,
    usage: Meter | None,
) -> Completion:
    meter, stopped = usage or Meter(), has_ended(finish_reason, VllmEngine.dialect)
    return Completion(
        ids=tuple(ids),
        logprobs=for_each(ids, logprobs, stopped=stopped),
        top=tuple(candidates(top) for top in of_kept(ids, tops, stopped=stopped)),
        stopped=stopped,
        cached=meter.cached,
        computed=meter.computed,
        prompt=meter.prompt_tokens,
    )


def _top_id(top: _Top) -> int:
    return top.token_id if top.token_id is not None else id_of(top.token or "")


def id_of(token: str) -> int:
    """`token_id:123` is 123. Raises `CloudProtocolError`."""
    number = token.removeprefix(_ID)
    short = len(number) <= _DIGITS and number.isascii()
    if not token.startswith(_ID) or not short or not number.isdigit():
        raise CloudProtocolError("vLLM sent tokens as text where ids were asked for.")
    return int(number)
