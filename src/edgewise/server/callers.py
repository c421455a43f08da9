"""Callers of the server: anybody, the holder of one key, or the keys of a file, with limits."""

import asyncio
import hmac
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

from fastapi import Request
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, WrappedCloud, WrappedSession
from edgewise.completion import Completion, Sent
from edgewise.errors import Blocked, CloudError
from edgewise.events import Finished, Token
from edgewise.keys.keys import ANYBODY, Key, Keys
from edgewise.keys.limit_stores import SqliteLimits
from edgewise.keys.limits import KeyLimits, LimitsDown, OverLimit, Spent
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.server.answering import AnswerEvent
from edgewise.server.errors import ApiError, come_back

RESERVE_SECONDS = 10.0
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
        shown = shown_key(request)
        if self._api_key is None:
            key = self.keys.find(shown)
        else:
            key = ANYBODY if hmac.compare_digest(shown.encode(), self._api_key) else None
        if key is None:
            raise ApiError(
                401,
                "The API key is wrong or missing; send it as a bearer token or as x-api-key.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.state.caller = Caller(self, key)


def caller_of(request: Request) -> "Caller":
    """Whose request it is."""
    return cast(Caller, request.state.caller)


class Caller:
    """A key, and one answer's use of it. In the event loop's thread only."""

    def __init__(self, callers: Callers, key: Key) -> None:
        self._callers, self.key = callers, key
        self._limited = key is not ANYBODY
        self.name = key.name if self._limited else ""
        """Of its key; empty where all are one."""
        self._loop = asyncio.get_running_loop()
        self._spent = Spent()

    def require_operator(self) -> None:
        """Before a list of all answers. Raises `ApiError` 403 if there are several keys."""
        if self._callers.keys.required:
            raise ApiError(403, "This tells of all keys' answers; /metrics has the sums.")

    @asynccontextmanager
    async def entered(self, *, cloud: bool) -> AsyncGenerator[None]:
        """A place among the key's answers, and a request of its, with the `cloud` or without.

        Raises `ApiError` 429 for a key at its limits, or 503 if they cannot be read.
        """
        most, answers = self.key.sessions, self._callers.answers
        if most and answers[self.name] >= most:
            raise come_back(f"The key may have {most} answers at a time.", PLACE_SECONDS)
        answers[self.name] += 1
        key = self.key if cloud else replace(self.key, tokens_per_day=0)
        try:
            async with AsyncExitStack() as spending:
                if self._limited:
                    request = self._callers.limits.spending(key, 0)
                    self._spent = await spending.enter_async_context(request)
                yield
        except OverLimit as over:
            seconds = over.retry_after or PLACE_SECONDS
            if isinstance(over.__cause__, LimitsDown):
                raise come_back(str(over), seconds, code="limits_unavailable", status=503) from over
            raise come_back(str(over), seconds) from over
        finally:
            answers[self.name] -= 1

    def limited(self, cloud: CloudModel) -> CloudModel:
        """`cloud`, asked for no more tokens than the key has left of its day.

        Where it has none left nothing is sent, and the edge model writes the rest of the answer.
        """
        if not self.key.tokens_per_day:
            return cloud
        return _LimitedCloud(cloud, self._callers.limits, self.key, self._loop)

    def read(self, prompt: Prompt) -> Prompt:
        """Charge the prompt to the key, which owns it from now on."""
        self._callers.limits.charge(self.key, len(prompt.ids))
        return replace(prompt, owner=self.name)

    def seen(self, event: AnswerEvent) -> AnswerEvent:
        """An event as the client may see it; counts it. Raises `ApiError` 401 for a key that was
        revoked."""
        if isinstance(event, Token):
            self._spent.computed += 1
        if not self._limited:
            return event
        if self._callers.keys.find_named(self.key) is None:
            message = "The key was revoked, or has expired."
            raise ApiError(401, message, code="invalid_api_key")
        if not isinstance(event, Finished):
            return event
        # Another key may have asked for what a cache held.
        hidden = {"cloud_prompt_cached": None, "cloud_prompt_computed": None, "cost": None}
        return replace(event, usage=replace(event.usage, **hidden))


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

    def reserve(self, tokens: int) -> int:
        """Reserve `tokens`; returns the day they are of.

        Raises `Blocked` if the key has not that many left, or if reserving takes too long.
        """
        work = self._limits.reserve(self._key, tokens)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(RESERVE_SECONDS)
        except (OverLimit, TimeoutError) as error:
            raise Blocked(str(error) or "The key's tokens were not reserved in time.") from error

    def settle(self, day: int, unused: int) -> None:
        """Give back what was not written."""
        work = self._limits.give_back(self._key, day, unused)
        asyncio.run_coroutine_threadsafe(work, self._loop)


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
        requests, each = self._model.requests(n)
        reserved = requests * each
        day = self._model.reserve(reserved)
        try:
            future = super().ask(ids, n, sampling, deadline, sent)
        except BaseException:
            self._model.settle(day, reserved)
            raise
        future.add_done_callback(
            lambda done: self._model.settle(day, reserved - _written(done, reserved, sent))
        )
        return future


def _written(done: "Future[Completion]", reserved: int, sent: Sent | None) -> int:
    """Tokens that the cloud wrote; all that were reserved if it is not known."""
    if done.cancelled():
        # It may be on its way just now.
        return reserved
    error = done.exception()
    if error is None:
        return max(len(done.result().ids), done.result().billed)
    declined = isinstance(error, CloudError) and error.declined
    return 0 if declined or (sent is not None and not sent.requests) else reserved


def shown_key(request: Request) -> str:
    """The key that a request brings; empty where it brings none. A bearer token comes first."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    bears = scheme.lower() == "bearer"
    return bearer.strip() if bears else request.headers.get("x-api-key", "")
