"""Callers of the server: anybody, the holder of one key, or the keys of a file, with limits."""

import hmac
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

from fastapi import Request
from msgspec.structs import replace

from edgewise.events import Finished, Token
from edgewise.keys.keys import ANYBODY, Key, Keys
from edgewise.keys.limit_stores import SqliteLimits
from edgewise.keys.limits import KeyLimits, OverLimit, Spent
from edgewise.prompts import Prompt
from edgewise.server.answering import AnswerEvent
from edgewise.server.errors import ApiError, come_back

PLACE_SECONDS = 1
"""Seconds until a retry if other answers of the same key have all its places."""


class Callers:
    """Finds the key of a request, and enforces the limits of a file's keys, counted here.

    Such a key is a tenant: it learns nothing of another's requests.
    """

    def __init__(self, *, api_key: str | None = None, keys: Keys | None = None) -> None:
        """Without `api_key` and `keys` anybody is let in."""
        self._api_key = None if api_key is None else api_key.encode()
        self.keys = keys or Keys(None)
        self.limits = KeyLimits(SqliteLimits(None))
        self.answers: Counter[str] = Counter()

    async def check(self, request: Request) -> None:
        """A dependency, which finds the request's `Caller`. Raises `ApiError` 401 or 403."""
        key = self.find(request)
        if key is None:
            what = "not accepted" if shown_key(request) else "missing"
            raise ApiError(
                401,
                f"The API key is {what}; send one as a bearer token or in x-api-key.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if key.tokens_per_day:
            message = "This key has a daily limit, which only a gateway enforces; use one without."
            raise ApiError(403, message, code="invalid_api_key")
        request.state.caller = Caller(self, key)

    def find(self, request: Request) -> Key | None:
        """The key that a request shows; None for one that is not accepted."""
        shown = shown_key(request)
        if self._api_key is None:
            return self.keys.find(shown)
        return ANYBODY if hmac.compare_digest(shown.encode(), self._api_key) else None


def caller_of(request: Request) -> "Caller":
    return cast(Caller, request.state.caller)


class Caller:
    """A key, and one answer's use of it. In the event loop's thread only."""

    def __init__(self, callers: Callers, key: Key) -> None:
        self._callers, self.key = callers, key
        self.name = "" if key is ANYBODY else key.name
        """Name of its key; empty without keys."""
        self._spent = Spent()

    @asynccontextmanager
    async def entered(self) -> AsyncGenerator[None]:
        """A place among the key's answers. Raises `ApiError` 429 for a key at its limits."""
        most, answers = self.key.sessions, self._callers.answers
        if most and answers[self.name] >= most:
            raise come_back(f"At most {most} concurrent answers for this key.", PLACE_SECONDS)
        answers[self.name] += 1
        try:
            async with self._callers.limits.spending(self.key, 0) as self._spent:
                yield
        except OverLimit as over:
            raise come_back(str(over), over.retry_after or PLACE_SECONDS) from over
        finally:
            answers[self.name] -= 1

    def read(self, prompt: Prompt) -> Prompt:
        """Charge the prompt to the key, which owns it from now on."""
        self._callers.limits.charge(self.key, len(prompt.ids))
        return replace(prompt, owner=self.name)

    def seen(self, event: AnswerEvent) -> AnswerEvent:
        """An event as the client may see it; counts it. Raises `ApiError` 401 for a key that was
        revoked."""
        if isinstance(event, Token):
            self._spent.computed += 1
        if self.key is ANYBODY:
            return event
        if self._callers.keys.current(self.key) is None:
            message = "The key was revoked, or has expired."
            raise ApiError(401, message, code="invalid_api_key")
        if not isinstance(event, Finished):
            return event
        # Another key may have asked for what a cache held.
        hidden = {"cloud_prompt_cached": None, "cloud_prompt_computed": None, "cost": None}
        return replace(event, usage=replace(event.usage, **hidden))


def shown_key(request: Request) -> str:
    """The key that a request brings; empty where it brings none. A bearer token comes first."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    bears = scheme.lower() == "bearer"
    return bearer.strip() if bears else request.headers.get("x-api-key", "")
