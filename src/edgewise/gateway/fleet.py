"""The engines behind a gateway: which one serves a session, how many consults each takes."""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog

from edgewise.engines.base import Client, Engine
from edgewise.errors import CloudError, CloudUnavailable, UsageError
from edgewise.sampling import Sampling
from edgewise.verdict import Verdict
from edgewise.wire.protocol import fingerprint

HEALTH_SECONDS = 2.0
"""Between two looks at an engine's health."""


log = structlog.get_logger("edgewise.gateway")


class Busy(Exception):
    """Too many consults wait already; `retry_after` in seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


class Replica:
    """An engine, whether it is well, and what it is doing."""

    def __init__(self, engine: Engine, concurrency: int) -> None:
        self.engine = engine
        self.up = False
        self.asked = 0
        self._problem: str | None = None
        self._turns = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._seconds = 0.05

    def tell(self, problem: Exception | None) -> None:
        """Log what changed since the last time."""
        said = None if problem is None else _said(problem)
        if said is not None and said != self._problem:
            log.warning("engine not used", engine=self.engine.url, why=said)
        if said is None and self._problem is not None:
            log.info("engine used again", engine=self.engine.url)
        self._problem = said

    @asynccontextmanager
    async def turn(self, queue: int) -> AsyncGenerator[None]:
        """A place among the consults at the engine; raises `Busy` where `queue` wait already."""
        waiting = self.asked - self._concurrency
        if waiting >= queue:
            raise Busy(max(0.05, self._seconds * (waiting + 1) / self._concurrency))
        self.asked += 1
        try:
            async with self._turns:
                begun = time.monotonic()
                yield
                self._seconds += 0.1 * (time.monotonic() - begun - self._seconds)
        finally:
            self.asked -= 1


class Fleet:
    """Replicas of one model. A session stays with its replica as long as that is well.

    Rendezvous hashing (Thaler and Ravishankar 1998): the replica whose hash with the session's
    name is greatest; when one fails, only its own sessions move.
    """

    def __init__(self, engines: Sequence[Engine], *, concurrency: int, queue: int) -> None:
        """`concurrency` consults at an engine at a time, `queue` more may wait for it."""
        self.replicas = [Replica(engine, concurrency) for engine in engines]
        self.tokenizer = ""
        self.engine = self.model = ""
        self._queue = queue
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Probe the engines that are up; a second call does nothing.

        Raises `UsageError` where two have other vocabularies, `CloudUnavailable` where none is up.
        """
        if self._watch is not None:
            return
        try:
            problems = await self._look_at_all()
            for problem in problems:
                if isinstance(problem, UsageError):
                    raise problem
            if not self.up:
                raise CloudUnavailable(f"No engine is ready: {_said(problems[0])}")
        except BaseException:
            await self.close()
            raise
        self._tell(problems)
        self._watch = asyncio.create_task(self._keep_looking())

    async def warn_of_shared_caches(self) -> None:
        """Log what the engines' operator should change, where several keys share their caches."""
        well = [replica for replica in self.replicas if replica.up]
        told = await asyncio.gather(*(_advice(replica.engine) for replica in well))
        for replica, advice in zip(well, told, strict=True):
            if advice is not None:
                log.warning("caches are shared", engine=replica.engine.url, why=advice)

    async def close(self) -> None:
        """Stop looking, close the connections."""
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.gather(*(replica.engine.close() for replica in self.replicas))

    @property
    def up(self) -> int:
        """Engines that are well."""
        return sum(replica.up for replica in self.replicas)

    @property
    def salted(self) -> bool:
        """Whether every engine keeps the caches of several tenants apart by a salt."""
        return all(replica.engine.abilities.salt for replica in self.replicas)

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client
    ) -> Verdict:
        """A consult at the session's replica, or at the next one where that is not well any more.

        Raises a `CloudError`, or `Busy`.
        """

        async def ask(replica: Replica) -> Verdict:
            async with replica.turn(self._queue):
                return await replica.engine.complete(ids, n, sampling, client)

        return await self._at_replica(client.session, ask)

    async def prefill(self, ids: Sequence[int], client: Client) -> None:
        """Warm the session's replica, unless consults wait for it."""
        for replica in self._ranked(client.session)[:1]:
            async with replica.turn(0):
                await replica.engine.prefill(ids, client)

    async def _at_replica(
        self, session: str, work: Callable[[Replica], Coroutine[Any, Any, Verdict]]
    ) -> Verdict:
        problem: CloudError | None = None
        for replica in self._ranked(session)[:2]:
            try:
                return await work(replica)
            except CloudUnavailable as error:
                if await self._look(replica) is None:
                    # It is well, only busy: elsewhere the session's cache would be missing.
                    raise
                problem = error
        raise problem or CloudUnavailable("No engine is ready", hint="try again shortly")

    def _ranked(self, session: str) -> list[Replica]:
        def weight(replica: Replica) -> bytes:
            text = f"{replica.engine.url} {session}"
            return hashlib.blake2b(text.encode(), digest_size=8).digest()

        well = [replica for replica in self.replicas if replica.up]
        return sorted(well, key=weight, reverse=True)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            self._tell(await self._look_at_all())

    async def _look_at_all(self) -> list[Exception | None]:
        return await asyncio.gather(*(self._look(replica) for replica in self.replicas))

    def _tell(self, problems: Sequence[Exception | None]) -> None:
        for replica, problem in zip(self.replicas, problems, strict=True):
            replica.tell(problem)

    async def _look(self, replica: Replica) -> Exception | None:
        """Update a replica's health; what keeps it from being used, or None."""
        try:
            async with asyncio.timeout(HEALTH_SECONDS * 5):
                if replica.up:
                    await replica.engine.ready()
                else:
                    # It may be another one than before.
                    await self._probe(replica.engine)
            problem = None
        except (CloudError, UsageError, TimeoutError) as error:
            problem = error
        except Exception as error:
            # The others are looked at all the same.
            log.exception("engine not looked at", engine=replica.engine.url)
            problem = error
        replica.up = problem is None
        return problem

    async def _probe(self, engine: Engine) -> None:
        abilities = await engine.probe()
        known = fingerprint(engine.vocabulary) if engine.vocabulary else ""
        if self.tokenizer and known != self.tokenizer:
            raise UsageError(
                f"The engine at {engine.url!r} has another vocabulary than the others",
                hint="one gateway serves one model",
            )
        self.tokenizer, self.engine = known, abilities.engine
        self.model = abilities.model or ""


async def _advice(engine: Engine) -> str | None:
    try:
        async with asyncio.timeout(HEALTH_SECONDS * 5):
            return await engine.advice()
    except (CloudError, TimeoutError) as error:
        return f"Nothing shows that it keeps the caches of several keys apart ({_said(error)})."


def _said(problem: Exception | None) -> str:
    return str(problem) or "no answer"
