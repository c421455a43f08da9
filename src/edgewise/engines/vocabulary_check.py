"""That the engine behind an address still is the one that was proven.

Engines are restarted, with other models too, and their address stays. So a proof is renewed: when
it is old, and when a consult needed a new connection, which an engine that was restarted makes it.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

from edgewise.completion import Completion
from edgewise.engines.base import PROBE_SECONDS, Client, Engine
from edgewise.errors import (
    CloudTimeout,
    CloudUnavailable,
    OtherVocabulary,
    UsageError,
)
from edgewise.sampling import Sampling

LOOK_SECONDS = 10.0
"""How long it may take to see that an engine is the same."""

PROVEN_SECONDS = 4.0
"""A proof that is older is renewed beside the next consult."""

FRESH_SECONDS = 1.0
"""A younger look is good enough, whatever happened since, until it is as old: looks are no load."""


class Proof:
    """Keeps an engine proven, as `holds` says. Lives in the engine's event loop."""

    def __init__(self, engine: Engine, accept: Callable[[], Awaitable[object]]) -> None:
        """`accept` judges an engine that was just probed; raises `UsageError` for one of others.

        Or a `CloudError`; it takes no longer than it should by itself.
        """
        self._engine, self._accept = engine, accept
        self.holds = False
        self._begun = -math.inf
        # Whether a consult needed a new connection since a look began.
        self._linked = False
        self._looking: asyncio.Task[None] | None = None
        self._refused: UsageError | None = None

    async def look(self) -> None:
        """Prove the engine, from the ground up where it is not known to be the same.

        Who comes while a look is under way shares it. Raises a `CloudError`, or what `accept` does.
        """
        await _ended(self._look())

    def forget(self) -> None:
        """The engine went: what comes back in its place may be another."""
        self.holds = False

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client
    ) -> Completion:
        """As `Engine.complete`, by an engine that is proven: another's completion is dropped.

        A look runs beside the consult, so that nobody waits longer for a token. Only where the
        engine is known to be another, it comes first: such an engine is sent nothing. Raises a
        `CloudError`, `OtherVocabulary` where the ids do not mean the same any more.
        """
        try:
            if not self.holds:
                await self._proven()
            return await self._beside_a_look(ids, n, sampling, client)
        except CloudUnavailable:
            # It may be starting anew.
            self._begun = -math.inf
            raise

    async def close(self) -> None:
        """Give up a look that is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @property
    def _age(self) -> float:
        return time.monotonic() - self._begun

    @property
    def _due(self) -> bool:
        return self._age > (FRESH_SECONDS if self._linked else PROVEN_SECONDS)

    async def _proven(self) -> None:
        """From the ground up, unless that was tried in vain just now."""
        if self._refused is not None and self._age < FRESH_SECONDS:
            raise _other(self._refused)
        await self._found(self._look())

    async def _beside_a_look(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client
    ) -> Completion:
        looking = self._look() if self._due else None
        made = self._engine.connections
        completion = await self._engine.complete(ids, n, sampling, client)
        if self._engine.connections != made:
            self._linked = True
            looking = self._look() if self._due else looking
        if looking is not None:
            await self._found(looking)
        return completion

    async def _found(self, look: asyncio.Task[None]) -> None:
        try:
            await _ended(look)
        except UsageError as error:
            raise _other(error) from error

    def _look(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._begun, self._linked = time.monotonic(), False
            self._looking = asyncio.create_task(self._prove())
            self._looking.add_done_callback(_heard)
        return self._looking

    async def _prove(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                if self.holds and await self._engine.unchanged():
                    return
            self.holds = False
            async with asyncio.timeout(PROBE_SECONDS):
                await self._engine.probe()
        except TimeoutError as error:
            raise CloudTimeout(f"{self._engine.url!r} does not say what it is.") from error
        try:
            await self._accept()
        except UsageError as error:
            self._refused = error
            raise
        self.holds, self._refused = True, None


def _other(error: UsageError) -> OtherVocabulary:
    return OtherVocabulary(error.message, hint=error.hint)


def _heard(look: asyncio.Task[None]) -> None:
    """Whoever waited may have left; what a look found shows at the next one."""
    if not look.cancelled():
        look.exception()


async def _ended(look: asyncio.Task[None]) -> None:
    """Wait for a look, which goes on for others where this one leaves."""
    try:
        await asyncio.shield(look)
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if waiting is not None and waiting.cancelling():
            raise
        raise CloudUnavailable("A look at the engine was broken off", hint="try again") from None
