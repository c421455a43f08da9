"""Clients and their API keys: no key, one key for all, or a key file with limits for each key."""

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
from edgewise.server.answering import AnswerEvent, AnswerQueue, QueuePlace
from edgewise.server.errors import ApiError, come_back

PLACE_SECONDS = 1
"""`Retry-After`, in seconds, if a key has as many concurrent answers as its limit allows."""


class Callers:
    """Checks the API keys of requests; enforces the limits in a key file, counting in this process.

    `api_key` is the only valid key, `keys` are those of a key file; without both everybody may ask.
    """

    def __init__(self, *, api_key: str | None = None, keys: Keys | None = None) -> None:
        self._api_key = None if api_key is None else api_key.encode()
        self.keys = keys or Keys(None)
        self.limits = KeyLimits(SqliteLimits(None))
        self.answers: Counter[str] = Counter()

    async def check(self, request: Request) -> None:
        """Check a request's API key; store its `Caller` as `request.state.caller`.

        Without configured keys every request passes. Raises `ApiError` 401 for a missing or invalid
        key, and 403 for one with a daily limit of tokens, which only `edgewise gateway` enforces.
        """
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
        """Return a request's key, `ANYBODY` without a key file; None if it is to be refused."""
        shown = shown_key(request)
        if self._api_key is None:
            return self.keys.find(shown)
        # In constant time, or the key could be guessed byte by byte.
        return ANYBODY if hmac.compare_digest(shown.encode(), self._api_key) else None


def caller_of(request: Request) -> "Caller":
    """Return the caller of a request that `Callers.check` has accepted."""
    return cast(Caller, request.state.caller)


class Caller:
    """The client of one request; counts what it uses towards the limits of its API key.

    Use beyond a limit makes `entered` refuse later requests. For the event loop's thread only.
    """

    def __init__(self, callers: Callers, key: Key) -> None:
        self._callers, self.key = callers, key
        self.name = "" if key is ANYBODY else key.name
        """Name of the key; empty if the server has no file of keys."""
        self._spent = Spent()

    @asynccontextmanager
    async def entered(self, queue: AnswerQueue) -> AsyncGenerator[QueuePlace]:
        """Hold a place in `queue` while the context is open; yield the place.

        The request is counted at once; the tokens that `seen` saw, when the context closes. The
        place is one of the key's concurrent answers until its future `over` is done, which may be
        later. Raises `ApiError` 429 if the queue is full, or if the key has reached its limit of
        concurrent answers, of requests a second or of token ids a second.
        """
        most, answers = self.key.sessions, self._callers.answers
        if most and answers[self.name] >= most:
            raise come_back(f"At most {most} concurrent answers for this key.", PLACE_SECONDS)
        # Before the count goes up: a full queue takes nothing of the key's limit.
        place = queue.enter()
        answers[self.name] += 1
        # Not when the client leaves: its answer holds a slot until its thread has stopped, and one
        # session could take all slots, one after the other.
        place.over.add_done_callback(lambda _: answers.subtract((self.name,)))
        try:
            async with self._callers.limits.spending(self.key, 0) as self._spent:
                yield place
        except OverLimit as over:
            raise come_back(str(over), over.retry_after or PLACE_SECONDS) from over
        finally:
            place.leave()

    def read(self, prompt: Prompt) -> Prompt:
        """Count a prompt's ids as used; return the prompt with the key's name as `owner`."""
        self._callers.limits.charge(self.key, len(prompt.ids))
        # The record of what was sent keeps the conversations of keys apart by it.
        return replace(prompt, owner=self.name)

    def seen(self, event: AnswerEvent) -> AnswerEvent:
        """Count a `Token` as one id used; return the event as the client may see it.

        With a key file, `Finished` loses the cost and the cloud's counts of cached and computed
        prompt tokens. Raises `ApiError` 401 if the key was revoked or has expired meanwhile.
        """
        if isinstance(event, Token):
            self._spent.computed += 1
        if self.key is ANYBODY:
            return event
        # At each event, so that a revoked key ends the answers that it has begun.
        if self._callers.keys.current(self.key) is None:
            message = "The key was revoked, or has expired."
            raise ApiError(401, message, code="invalid_api_key")
        if not isinstance(event, Finished):
            return event
        # Another key may have asked for what a cache held.
        hidden = {"cloud_prompt_cached": None, "cloud_prompt_computed": None, "cost": None}
        return replace(event, usage=replace(event.usage, **hidden))


def shown_key(request: Request) -> str:
    """Return the API key in a request's headers: the bearer token, else `x-api-key`, else ""."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    bears = scheme.lower() == "bearer"
    return bearer.strip() if bears else request.headers.get("x-api-key", "")
