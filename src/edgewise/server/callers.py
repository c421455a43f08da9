"""Who may ask, and how much: anybody, who shows the one key, or the keys of a file."""

import hmac
import math
from collections import Counter
from contextlib import AsyncExitStack
from typing import cast

from fastapi import Request
from msgspec.structs import replace

from edgewise.events import Consult, Event, Finished, Token
from edgewise.keys.key_file import ANYBODY, Key
from edgewise.keys.keys import Keys
from edgewise.keys.limits import KeyLimits, LimitsDown, OverLimit, Spent, Tab
from edgewise.keys.limits_sqlite import SqliteLimits
from edgewise.prompts import Prompt
from edgewise.server.errors import ApiError

PLACE_SECONDS = 1
"""When to come back for a place that another answer of the same key has."""


class Callers:
    """Finds the key of a request, and holds each key of a file to its limits.

    Such a key is a tenant: nothing tells it what another asked.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        keys: Keys | None = None,
        limits: KeyLimits | None = None,
    ) -> None:
        """Without `api_key` and `keys` anybody is let in; without `limits` what keys use is
        counted in this process."""
        self._api_key = None if api_key is None else api_key.encode()
        self.keys = keys or Keys(None)
        self.limits = limits or KeyLimits(SqliteLimits(None))
        self.answers: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()

    async def open(self) -> None:
        """Raises `UsageError` where it cannot be counted what keys use."""
        if self.keys.required:
            await self.limits.open()

    async def close(self) -> None:
        """What is being counted is counted first."""
        if self.keys.required:
            await self.limits.close()

    async def check(self, request: Request) -> None:
        """A dependency, which finds the request's `Caller`. Raises `ApiError` 401."""
        key = self._found(_shown(request))
        if key is None:
            raise ApiError(
                401,
                "The API key is wrong or missing; send it as a bearer token or as x-api-key.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.state.caller = Caller(self, key)

    async def check_operator(self) -> None:
        """A dependency of what tells of all answers. Raises `ApiError` 403 where keys differ."""
        if self.keys.required:
            told = "This tells of all keys' answers, so none is shown it; /metrics has the sums."
            raise ApiError(403, told)

    def _found(self, shown: str) -> Key | None:
        if self._api_key is None:
            return self.keys.find(shown)
        return ANYBODY if hmac.compare_digest(shown.encode(), self._api_key) else None


def caller_of(request: Request) -> "Caller":
    """Whose request it is."""
    return cast(Caller, request.state.caller)


class Caller:
    """A key, and what an answer of its may use. In the event loop's thread only."""

    def __init__(self, callers: Callers, key: Key) -> None:
        self._callers, self.key = callers, key
        self._spending = AsyncExitStack()
        self._spent = Spent()
        self._held = 0
        self._entered = False

    @property
    def name(self) -> str:
        """Of its key; empty where all are one."""
        return "" if self.key is ANYBODY else self.key.name

    def enter(self) -> None:
        """Take a place among the key's answers. Raises `ApiError` 429 where it has no more."""
        most = self.key.sessions
        if most and self._callers.answers[self.name] >= most:
            raise _over(f"The key may have {most} answers at a time.", PLACE_SECONDS)
        self._callers.answers[self.name] += 1
        self._entered = True

    async def ask(self, *, cloud: bool) -> None:
        """Before a prompt is read: a request of the key's, with the `cloud` or without.

        Raises `ApiError` 429 over its limits, or 503.
        """
        if self.key is ANYBODY:
            return
        key = self.key if cloud else replace(self.key, tokens_per_day=0)
        try:
            spending = self._callers.limits.spending(key, Tab(), 0)
            self._spent = await self._spending.enter_async_context(spending)
        except OverLimit as over:
            seconds = math.ceil(over.retry_after or PLACE_SECONDS)
            down = isinstance(over.__cause__, LimitsDown)
            raise _over(str(over), seconds, status=503 if down else 429) from over

    async def read(self, prompt: Prompt) -> Prompt:
        """What the key pays for, and whose it is from now on. Raises `ApiError` 429."""
        ids, most = len(prompt.ids), self.key.ids
        if most and self._callers.ids[self.name] + ids > most:
            raise _over(f"The key's prompts may have {most} tokens at a time.", PLACE_SECONDS)
        self._callers.ids[self.name] += ids
        self._held = ids
        tab = Tab()
        tab.ids = ids
        await self._callers.limits.charge(self.key, tab)
        return replace(prompt, owner=self.name)

    def seen(self, event: Event) -> Event:
        """An event as the client is told it, which counts. Raises `ApiError` 401 for a key that is
        out of force."""
        if isinstance(event, Token):
            self._spent.computed += 1
        elif isinstance(event, Consult):
            self._spent.tokens += event.answered
        elif isinstance(event, Finished):
            self._spent.tokens = event.usage.cloud_tokens + event.usage.wasted_tokens
        if self.key is ANYBODY:
            return event
        if self._callers.keys.find_named(self.key) is None:
            told = "The key was revoked, or has expired."
            raise ApiError(401, told, code="invalid_api_key")
        return _unmetered(event)

    async def leave(self) -> None:
        """The answer is over; later calls do nothing."""
        if self._entered:
            self._entered = False
            self._callers.answers[self.name] -= 1
            self._callers.ids[self.name] -= self._held
            await self._spending.aclose()


def _unmetered(event: Event) -> Event:
    """Without what a cache held: another key may have asked that."""
    if not isinstance(event, Finished):
        return event
    usage = replace(event.usage, cloud_prompt_cached=None, cloud_prompt_computed=None, cost=None)
    return replace(event, usage=usage)


def _shown(request: Request) -> str:
    """The key that a request brings: a bearer token, else as Anthropic's clients send it."""
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        shown = request.headers.get("x-api-key", "")
    return shown.strip()


def _over(told: str, seconds: int, *, status: int = 429) -> ApiError:
    return ApiError(
        status,
        told,
        kind="rate_limit_error" if status == 429 else "api_error",
        code="rate_limit_exceeded" if status == 429 else "limits_unavailable",
        headers={"Retry-After": str(seconds)},
    )
