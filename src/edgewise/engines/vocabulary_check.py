"""Checks that the engine at an address still has the vocabulary that was once accepted."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

from edgewise.completion import Completion
from edgewise.engines.base import PROBE_SECONDS, Client, Engine
from edgewise.errors import CloudTimeout, CloudUnavailable, OtherVocabulary, UsageError
from edgewise.sampling import Sampling

CHECK_SECONDS = 10.0
"""Timeout in seconds of a repeated check."""

FRESH_SECONDS = 1.0
"""Seconds after the start of a check in which its result counts, and no other is started."""


class VocabularyCheck:
    """Checks one engine's vocabulary, again after reconnections. Used in one event loop.

    `passed` is True once a check succeeded, until one finds that the engine has changed.
    """

    def __init__(self, engine: Engine, accept: Callable[[], Awaitable[object]]) -> None:
        """Watch `engine`, without a check yet.

        `accept` is called after each probe of the engine; it raises `UsageError` or a `CloudError`
        if the engine is not to be used.
        """
        self._engine, self._accept = engine, accept
        # An engine may be restarted with another model; its connections end then.
        engine.connected = self._reconnected
        self.passed = False
        self._started = -math.inf
        self._due = False
        self._last: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Check the engine now, or wait for the check under way; afterwards `passed` is True.

        Raises a `CloudError`, or the `UsageError` by which `accept` (see `__init__`) refuses it.
        """
        await finished(self._start())

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client, verify: int = 0
    ) -> Completion:
        """Return up to `n` tokens after `ids` or, with `verify`, verdicts on the last `verify` ids.

        Unless `passed`, a check must succeed before ids are sent. After a reconnection the engine
        is checked while the consult runs; if the check fails, its error is raised in place of the
        completion. Raises a `CloudError`: `OtherVocabulary` if the ids now have another meaning.
        """
        try:
            if not self.passed:
                await self._accepted(self._recent() or self._start())
            # Beside the consult, so that nobody waits longer for a token.
            self._start_if_due()
            before = self._last if self._last is not None and self._last.done() else None
            completion = await self._engine.consult(ids, n, sampling, client, verify)
            if self._last is not None and self._last is not before:
                await self._accepted(self._last)
        except CloudUnavailable:
            # The engine may be restarting.
            self._due, self._started = True, -math.inf
            raise
        return completion

    async def close(self) -> None:
        """Cancel a check that is under way."""
        if self._last is not None:
            self._last.cancel()
            await asyncio.gather(self._last, return_exceptions=True)

    def _reconnected(self) -> None:
        self._due = True
        if self.passed:
            self._start_if_due()

    def _start_if_due(self) -> None:
        if self._due and self._recent() is None:
            self._start()

    def _recent(self) -> asyncio.Task[None] | None:
        """Return the last check if it began within `FRESH_SECONDS`, else None."""
        return self._last if time.monotonic() - self._started < FRESH_SECONDS else None

    async def _accepted(self, check: asyncio.Task[None]) -> None:
        try:
            await finished(check)
        except UsageError as error:
            raise OtherVocabulary(error.message, hint=error.hint) from error

    def _start(self) -> asyncio.Task[None]:
        if self._last is None or self._last.done():
            self._started, self._due = time.monotonic(), False
            self._last = asyncio.create_task(self._check())
            # If nobody waits any more, the next check fails in the same way.
            self._last.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._last

    async def _check(self) -> None:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                if self.passed and await self._engine.unchanged():
                    return
            self.passed = False
            async with asyncio.timeout(PROBE_SECONDS):
                await self._engine.probe()
        except TimeoutError as error:
            raise CloudTimeout(f"{self._engine.url!r} did not answer a check in time.") from error
        await self._accept()
        self.passed = True


async def finished(check: asyncio.Task[None]) -> None:
    """Wait for a check; it continues for others if this caller is cancelled."""
    try:
        await asyncio.shield(check)
    except asyncio.CancelledError:
        # Either this caller was cancelled, or the check alone was, by `close`.
        waiting = asyncio.current_task()
        if waiting is not None and waiting.cancelling():
            raise
        raise CloudUnavailable("A check of the engine was interrupted", hint="try again") from None
