"""The engines behind a gateway: which one serves a session, and how many consults run at each."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog

from edgewise.addresses import is_url
from edgewise.cloud.registry import AUTO, GATEWAY, engine_at, engine_by_ids
from edgewise.completion import Completion
from edgewise.edge.base import EdgeOptions
from edgewise.engines.base import Client, Engine, Watched
from edgewise.engines.detokenization import difference
from edgewise.engines.vocabulary_check import VocabularyCheck
from edgewise.errors import (
    AddressError,
    CloudError,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    EdgewiseError,
    ModelError,
    OtherVocabulary,
    UsageError,
)
from edgewise.keys.limits import OverLimit
from edgewise.sampling import Sampling
from edgewise.wire.protocol import fingerprint

HEALTH_SECONDS = 2.0
"""Seconds between two health checks of an engine."""

# Timeout of a prefetch: a request that the engine lost must not hold its place for ever.
PREFILL_SECONDS = 60.0

# Devices that compare a large vocabulary ask for twenty.
KEPT_TEXTS = 32
"""Most texts of `Fleet.detokenize` that are kept, to compare engines that come up later."""

MOST_WATCHED = 4096
"""Most ids that an engine must detokenize to the same text at each vocabulary check."""

BUSY_SECONDS = 0.2
"""Seconds after which a consult that was refused because too many wait may be tried again."""

CHECK_SECONDS = 10.0
"""Timeout of a health check."""

SHARED = (
    "The engine has no salt that keeps the caches of several keys apart, so response times can "
    "reveal what others asked. Choose a version that has one; start a llama-server with "
    "--slot-prompt-similarity 0 --cache-ram 0 --no-kv-unified, or nothing is reused for keys."
)

log = structlog.get_logger("edgewise.gateway")


async def engines_at(
    addresses: Sequence[str],
    *,
    key: str | None,
    kind: str = AUTO,
    model: str | None = None,
    options: EdgeOptions | None = None,
) -> list[Engine]:
    """Return the engines at `addresses`: URLs, or one model that runs in the gateway's process.

    `key` is sent to the URLs. `kind` is the engines' type ("auto": detect it), `model` the model's
    name, if a URL serves several. A model in this process must be the only address; `options` are
    for it. Raises `UsageError` for an invalid combination or model, `CloudError` if a URL has no
    known engine.
    """
    if here := [one for one in addresses if not is_url(one)]:
        if len(addresses) > 1 or kind != AUTO or model is not None:
            raise UsageError(
                f"{here[0]!r} runs in the gateway: it cannot be combined with other engines, an "
                "engine kind or a model name",
                hint="give it alone",
                setting="engine",
            )
        from edgewise.gateway.local import SLOTS, LocalEngine

        try:
            slots = SLOTS if options is None else options.slots
            return [LocalEngine(here[0], options, slots=slots)]
        except (AddressError, ModelError) as error:
            # A gateway has no model of a device's settings.
            error.setting = "ctx" if error.setting == "ctx" else "engine"
            raise
    kinds = [kind] * len(addresses) if kind != AUTO else await _kinds(addresses, key, model)
    named = zip(addresses, kinds, strict=True)
    return [engine_by_ids(kind, address, key=key, model=model) for address, kind in named]


async def _kinds(addresses: Sequence[str], key: str | None, model: str | None) -> list[str]:
    """Return the engine type at each URL; one that is down is assumed to be like another."""
    # So a gateway that is started again during an engine's outage comes back.
    asked = (engine_at(address, key=key, model=model) for address in addresses)
    found = await asyncio.gather(*asked, return_exceptions=True)
    known = [one for one in found if isinstance(one, str)]
    for address, one in zip(addresses, found, strict=True):
        if one == GATEWAY:
            raise UsageError(f"{address!r} is a gateway itself", hint="name the engine behind it")
        down = isinstance(one, CloudUnavailable | CloudTimeout)
        if isinstance(one, BaseException) and not (down and known):
            raise one
    return [one if isinstance(one, str) else known[0] for one in found]


class Replica:
    """One engine of a fleet, with its health, its vocabulary check and its queue of consults.

    `up` says whether the last health check passed, `consults` how many run or wait.
    """

    def __init__(
        self,
        engine: Engine,
        concurrency: int,
        accept: Callable[[Engine], Coroutine[Any, Any, None]],
    ) -> None:
        """`concurrency` consults may run at the engine at a time.

        `accept`, called in each vocabulary check, raises `UsageError` to keep an engine out.
        """
        self.engine = engine
        self.check = VocabularyCheck(engine, lambda: accept(engine))
        self.up = False
        self.consults = 0
        self._reported: str | None = None
        self._turns = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency

    async def check_health(self) -> BaseException | None:
        """Check that the engine is ready with the accepted vocabulary; set `up` and log any change.

        Returns what the check raised, or None.
        """
        problem: BaseException | None = None
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self.check.run()
        except (KeyboardInterrupt, SystemExit):
            raise
        # Whatever an engine sets off must not end its health checks.
        except BaseException as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            problem = error
            # What comes back in its place may be another.
            self.check.passed = False
        self.up = problem is None
        why = None if problem is None else _message(problem)
        if why not in (None, self._reported):
            bug = None if isinstance(problem, EdgewiseError | TimeoutError) else problem
            log.warning("engine not used", engine=self.engine.url, why=why, exc_info=bug)
        elif why is None and self._reported is not None:
            log.info("engine used again", engine=self.engine.url)
        self._reported = why
        return problem

    async def watch(self) -> None:
        """Check the engine's health every `HEALTH_SECONDS`, until the task is cancelled."""
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            await self.check_health()

    async def close(self) -> None:
        """Stop a vocabulary check under way (not `watch`) and close the engine's connections."""
        await self.check.close()
        await self.engine.close()

    @asynccontextmanager
    async def turn(self, queue: int) -> AsyncGenerator[None]:
        """Wait for one of the engine's `concurrency` places; hold it while the block runs.

        Raises `OverLimit` if `queue` consults wait already (0: if all places are taken).
        """
        if self.consults - self._concurrency >= queue:
            message = "Too many consults; try again later."
            raise OverLimit("unavailable", message, BUSY_SECONDS)
        self.consults += 1
        try:
            async with self._turns:
                yield
        finally:
            self.consults -= 1


class Fleet:
    """The replicas of one cloud model. A session stays with one replica while that is ready.

    Known after `start`: `tokenizer`, the vocabulary's fingerprint; `engine`, the engine's type;
    `model`, its name; `size`, its number of ids (or None); `end`, its end token's text (or "").
    """

    def __init__(self, engines: Sequence[Engine], *, concurrency: int, queue: int) -> None:
        """At each engine `concurrency` consults run at a time, and `queue` more may wait."""
        self.replicas = [Replica(engine, concurrency, self._accept) for engine in engines]
        self.tokenizer = self.engine = self.model = self.end = ""
        self.size: int | None = None
        self._queue = queue
        self._texts: dict[tuple[int, ...], str] = {}
        self._models: dict[Engine, str] = {}
        self._watches: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Check all engines once, then keep checking them in the background.

        Raises `UsageError` if two engines have different vocabularies or one does not report its
        own, `CloudUnavailable` if no engine is ready. After an error the fleet is closed.
        """
        try:
            problems = await asyncio.gather(*(replica.check_health() for replica in self.replicas))
            for problem in problems:
                if isinstance(problem, UsageError):
                    raise problem
            if not self.up:
                raise CloudUnavailable(f"No engine is ready: {_message(problems[0])}")
        except BaseException:
            await self.close()
            raise
        self._watches = [asyncio.create_task(replica.watch()) for replica in self.replicas]

    def warn_of_shared_caches(self) -> None:
        """Log a warning for each ready engine that cannot keep the prefix caches of keys apart."""
        for replica in self._healthy:
            if not replica.engine.salted:
                log.warning("caches are shared", engine=replica.engine.url, why=SHARED)

    async def close(self) -> None:
        """Stop the health checks and close the connections to all engines."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*(replica.close() for replica in self.replicas))

    @property
    def up(self) -> int:
        """Number of engines that are ready and whose vocabulary was accepted."""
        return sum(replica.up and replica.check.passed for replica in self.replicas)

    @property
    def salted(self) -> bool:
        """Whether every engine takes a salt, which keeps the prefix caches of keys apart."""
        return all(replica.engine.salted for replica in self.replicas)

    @property
    def verifies(self) -> bool:
        """Whether every engine can verify draft tokens."""
        return all(replica.engine.verifies for replica in self.replicas)

    @property
    def reads_once(self) -> bool:
        """Whether every engine reads a block of drafts in one prompt, not in one for each draft."""
        return all(replica.engine.reads_once for replica in self.replicas)

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client, verify: int = 0
    ) -> Completion:
        """Send a consult to the session's replica, or to another if that one proves to be down.

        Returns up to `n` tokens after `ids`. With `verify` above 0 `n` must be 0, and the last
        `verify` ids are draft tokens: each has a verdict in `Completion.verified`. `client` names
        the key, and the session whose replica is asked. Raises a `CloudError`, also for an invalid
        completion, or `OverLimit` if too many consults wait.
        """
        if not ids:
            raise CloudRejected("A consult needs at least one token id.")
        problem: CloudError | None = None
        for replica in self._ranked(client.session)[:2]:
            try:
                async with replica.turn(self._queue):
                    completion = await replica.check.complete(ids, n, sampling, client, verify)
                # An end token that the engine kept to itself is for the device to know.
                ended = completion.stopped
                completion.validate(
                    asked=n, prompt=len(ids), size=self.size, may_be_empty=ended, verify=verify
                )
                return completion
            except (CloudUnavailable, OtherVocabulary) as error:
                if await replica.check_health() is None:
                    # It is well, only busy: elsewhere the session's cache would be missing.
                    raise
                problem = error
        raise problem or _none_ready()

    async def detokenize(self, ids: Sequence[int]) -> str | None:
        """Return the text of `ids`; None if an engine does not detokenize.

        All ready engines must agree on the text. The fleet remembers it, and requires it of an
        engine that comes up later. Raises `OtherVocabulary` if two engines differ, another
        `CloudError` if one fails or none is ready.
        """
        if (known := self._texts.get(tuple(ids))) is not None:
            return known
        engines = [replica.engine for replica in self._healthy]
        if not engines:
            raise _none_ready()
        replies = await asyncio.gather(*(engine.detokenize(ids) for engine in engines))
        text = replies[0]
        if text is None or None in replies:
            return None
        for engine, own in zip(engines, replies, strict=True):
            if not _same(engine, ids, own, text):
                raise OtherVocabulary("The gateway's engines have different vocabularies.")
        self._texts[tuple(ids)] = text
        if len(self._texts) > KEPT_TEXTS:
            del self._texts[next(iter(self._texts))]
        return text

    async def prefill(self, ids: Sequence[int], client: Client) -> None:
        """Let the replica of the client's session prefill its KV cache with `ids`, if one is ready.

        Raises a `CloudError` if that fails, `OverLimit` if all places at the engine are taken.
        """
        for replica in self._ranked(client.session)[:1]:
            try:
                async with replica.turn(0), asyncio.timeout(PREFILL_SECONDS):
                    await replica.engine.prefill(ids, client)
            except TimeoutError as error:
                raise CloudTimeout("The engine did not prefetch in time.") from error

    def _ranked(self, session: str) -> list[Replica]:
        # Rendezvous hashing (Thaler and Ravishankar 1998): when a replica fails, only its own
        # sessions move.
        def weight(replica: Replica) -> bytes:
            return hashlib.blake2b(f"{replica.engine.url} {session}".encode()).digest()

        return sorted(self._healthy, key=weight, reverse=True)

    @property
    def _healthy(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.up]

    async def _accept(self, engine: Engine) -> None:
        """Raise `UsageError` for another vocabulary or none; accept another model, but log it."""
        if engine.vocabulary is None:
            raise UsageError(
                f"The engine at {engine.url!r} does not report its tokenizer, so its vocabulary "
                "cannot be checked",
                hint="serve its tokenizer too",
            )
        known, size = fingerprint(engine.vocabulary), engine.described.size
        others = self.tokenizer not in ("", known) or self.size not in (None, size or self.size)
        texts = list(self._texts.items())
        if others or not all([_same(engine, i, await engine.detokenize(i), t) for i, t in texts]):
            raise UsageError(
                f"The engine at {engine.url!r} has another vocabulary than the others",
                hint="one gateway serves one model",
            )
        model = engine.described.model or ""
        if model and self.model not in ("", model) and self._models.get(engine) != model:
            log.warning("another model", engine=engine.url, model=model, before=self.model)
        self._models[engine] = model
        self.tokenizer, self.engine = known, engine.dialect
        self.model, self.size = model, size or self.size
        self.end = await engine.end_text() or self.end


def _same(engine: Engine, ids: Sequence[int], own: str | None, text: str) -> bool:
    """Whether an engine's own text of `ids` equals `text` but for differences between engine types.

    If so and `ids` are few, `watched` is set if unset: later checks compare this text again.
    """
    # Either engine may tidy up its text.
    if own is None or all(difference(*two, control=False) for two in ((own, text), (text, own))):
        return False
    if engine.watched is None and len(ids) <= MOST_WATCHED:
        engine.watched = Watched(ids, own)
    return True


def _none_ready() -> CloudUnavailable:
    return CloudUnavailable("No engine is ready", hint="try again shortly")


def _message(problem: BaseException | None) -> str:
    return str(problem) or type(problem).__name__
