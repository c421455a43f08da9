"""Callers of the server: anybody, the holder of one key, or the keys of a file, with limits."""

import asyncio
import hmac
import math
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, cast

from fastapi import Request
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, WrappedCloud, WrappedSession
from edgewise.completion import Completion, Sent
from edgewise.errors import Blocked, CloudError
from edgewise.events import Event, Finished, Token
from edgewise.keys.keys import ANYBODY, Key, Keys
from edgewise.keys.limit_stores import SqliteLimits
from edgewise.keys.limits import KeyLimits, LimitsDown, OverLimit, Spent
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.server.errors import ApiError

_T = TypeVar("_T")

BOOK_SECONDS = 10.0
"""How long an answer's thread waits for a reservation."""

PLACE_SECONDS = 1
"""When to retry if other answers of the same key have all its places."""


class Callers:
    """Finds the key of a request, and enforces the limits of a file's keys.

    Such a key is a tenant: it learns nothing of another's requests.
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
        key = self._found(shown_key(request))
        if key is None:
            raise ApiError(
                401,
                "The API key is wrong or missing; send it as a bearer token or as x-api-key.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.state.caller = Caller(self, key)

    def _found(self, shown: str) -> Key | None:
        if self._api_key is None:
            return self.keys.find(shown)
        return ANYBODY if hmac.compare_digest(shown.encode(), self._api_key) else None


def caller_of(request: Request) -> "Caller":
    """Whose request it is."""
    return cast(Caller, request.state.caller)


class Caller:
    """A key, and one answer's use of it. In the event loop's thread only."""

    def __init__(self, callers: Callers, key: Key) -> None:
        self._callers, self.key = callers, key
        self._loop = asyncio.get_running_loop()
        self._spent = Spent()

    @property
    def name(self) -> str:
        """Of its key; empty where all are one."""
        return "" if self.key is ANYBODY else self.key.name

    def require_operator(self) -> None:
        """Before what tells of all answers. Raises `ApiError` 403 if there are several keys."""
        if self._callers.keys.required:
            raise ApiError(403, "This tells of all keys' answers; /metrics has the sums.")

    @asynccontextmanager
    async def entered(self, *, cloud: bool) -> AsyncGenerator[None]:
        """A place among the key's answers, and a request of its, with the `cloud` or without.

        Raises `ApiError` 429 for a key at its limits, or 503 if they cannot be read.
        """
        most, answers = self.key.sessions, self._callers.answers
        if most and answers[self.name] >= most:
            raise _over(f"The key may have {most} answers at a time.", PLACE_SECONDS)
        answers[self.name] += 1
        try:
            async with AsyncExitStack() as spending:
                if self.key is not ANYBODY:
                    await self._ask(spending, cloud=cloud)
                yield
        finally:
            answers[self.name] -= 1

    async def _ask(self, spending: AsyncExitStack, *, cloud: bool) -> None:
        key = self.key if cloud else replace(self.key, tokens_per_day=0)
        try:
            asked = self._callers.limits.spending(key, 0)
            self._spent = await spending.enter_async_context(asked)
        except OverLimit as over:
            seconds = math.ceil(over.retry_after or PLACE_SECONDS)
            down = isinstance(over.__cause__, LimitsDown)
            raise _over(str(over), seconds, status=503 if down else 429) from over

    def limited(self, cloud: CloudModel) -> CloudModel:
        """`cloud`, asked for no more tokens than the key has left of its day.

        Where it has none left nothing is sent, and the edge model writes the rest of the answer.
        """
        if not self.key.tokens_per_day:
            return cloud
        return _LimitedCloud(cloud, self._callers.limits, self.key, self._loop)

    def read(self, prompt: Prompt) -> Prompt:
        """What the key pays for, and whose it is from now on."""
        self._callers.limits.charge(self.key, len(prompt.ids))
        return replace(prompt, owner=self.name)

    def seen(self, event: Event) -> Event:
        """An event as the client may see it; counts it. Raises `ApiError` 401 for a key that was
        revoked."""
        if isinstance(event, Token):
            self._spent.computed += 1
        if self.key is ANYBODY:
            return event
        if self._callers.keys.find_named(self.key) is None:
            message = "The key was revoked, or has expired."
            raise ApiError(401, message, code="invalid_api_key")
        return _unmetered(event)


class _LimitedCloud(WrappedCloud):
    """Implements `CloudModel`: every consult's tokens are reserved before anything is sent.

    `loop` does the counting; this is called in the thread that writes an answer.
    """

    def __init__(
        self, cloud: CloudModel, limits: KeyLimits, key: Key, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(cloud)
        self._limits, self._key, self._loop = limits, key, loop

    def open(self, prompt: Prompt) -> "_LimitedSession":
        return _LimitedSession(self, prompt)

    def book(self, tokens: int) -> int:
        """Reserve `tokens`; returns the day they are of.

        Raises `Blocked` if the key has not that many left, or if booking takes too long.
        """
        try:
            return self._begun(self._limits.reserve(self._key, tokens)).result(BOOK_SECONDS)
        except (OverLimit, TimeoutError) as error:
            raise Blocked(str(error) or "The key's tokens were not booked in time.") from error

    def settle(self, day: int, unused: int) -> None:
        """Give back what was not written."""
        self._begun(self._limits.give_back(self._key, day, unused))

    def _begun(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)


class _LimitedSession(WrappedSession):
    def __init__(self, model: _LimitedCloud, prompt: Prompt) -> None:
        super().__init__(model.cloud.open(prompt))
        self._model = model

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        requests, asked = self._model.requests(n)
        reserved = requests * asked
        day = self._model.book(reserved)
        try:
            future = super().ask(ids, n, sampling, deadline, sent)
        except BaseException:
            self._model.settle(day, reserved)
            raise
        future.add_done_callback(
            lambda done: self._model.settle(day, reserved - _written(done, reserved, sent))
        )
        return future


def _written(done: "Future[Completion]", asked: int, sent: Sent | None) -> int:
    """Tokens that a consult came to; all that were asked for where nobody knows.

    Nothing was written where the cloud declined, or nothing was sent.
    """
    if done.cancelled():
        # It may be on its way just now.
        return asked
    error = done.exception()
    if error is None:
        return max(len(done.result().ids), done.result().billed)
    declined = isinstance(error, CloudError) and error.declined
    return 0 if declined or (sent is not None and not sent.requests) else asked


def _unmetered(event: Event) -> Event:
    """Without what a cache held: another key may have asked that."""
    if not isinstance(event, Finished):
        return event
    usage = replace(event.usage, cloud_prompt_cached=None, cloud_prompt_computed=None, cost=None)
    return replace(event, usage=usage)


def shown_key(request: Request) -> str:
    """The key that a request brings; empty where it brings none. A bearer token comes first."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    bears = scheme.lower() == "bearer"
    return bearer.strip() if bears else request.headers.get("x-api-key", "")


def _over(message: str, seconds: int, *, status: int = 429) -> ApiError:
    return ApiError(
        status,
        message,
        kind="rate_limit_error" if status == 429 else "api_error",
        code="rate_limit_exceeded" if status == 429 else "limits_unavailable",
        headers={"Retry-After": str(seconds)},
    )
