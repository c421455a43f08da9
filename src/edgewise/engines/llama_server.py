"""The engine for llama-server, whose slots are shared by tenants (the API keys of a gateway)."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import reduce
from itertools import count
from typing import NamedTuple

from edgewise.completion import Completion, metered
from edgewise.engines.base import NOBODY, PROBE_SECONDS, Client
from edgewise.engines.http import HttpEngine
from edgewise.engines.vocabulary_check import finished
from edgewise.errors import CloudProtocolError, CloudRejected, CloudTimeout, CloudUnavailable
from edgewise.sampling import Sampling
from edgewise.servers.base import Request, decoded
from edgewise.servers.llama_server import LlamaCppServer, Props

# Number of ids in a made-up prompt, and how many reused ones are no coincidence.
_MADE_UP, _NOTED = 32, 16

LINGER_SECONDS = 60.0
"""Seconds in which the server may still start a request that was cancelled."""

_UNKNOWN = ""


class Place(NamedTuple):
    """A request's slot, by number; `reuse`: the slot holds no prompt of another tenant."""

    slot: int
    reuse: bool


class _Slot:
    """A slot of the server, and the tenants (`holds`) whose prompts it may hold.

    `pending` says until when cancelled requests of a tenant may still run in it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.session = ""
        self.busy = False
        self.used = 0
        self.holds = {_UNKNOWN}
        self.pending: dict[str, float] = {}


class SlotTable:
    """The slots of one server, with at most one request of ours in each. Used in one event loop.

    A session keeps its slot until another session needs it; then the longest idle slot is given
    away. A slot counts as holding a tenant's prompt until another tenant's request is answered
    there in full; after a cancelled request of the first tenant for `LINGER_SECONDS` at least.
    """

    def __init__(self, slots: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = [_Slot(number) for number in range(slots)]
        self._free = asyncio.Semaphore(slots)
        self._clock = clock
        self._uses = count(1)

    def __len__(self) -> int:
        return len(self._slots)

    @asynccontextmanager
    async def place(self, session: str, tenant: str) -> AsyncGenerator[Place]:
        """Wait for a free slot, and hold it while the `async with` block sends one request.

        It is the session's own slot if free; else the longest idle, preferably one where no
        cancelled request of another tenant may still run. The block must read the whole reply or
        raise, and must not reuse the slot's KV cache unless `Place.reuse`.
        """
        async with self._free:
            slot = self._chosen(session, tenant)
            others = self._others_pending(slot, tenant)
            # A slot reuses the prompt that it holds, whoever sent it, and response times reveal how
            # much of it. Other tenants with pending requests are among `holds`.
            reuse = slot.holds <= {tenant}
            slot.session, slot.busy = session, True
            slot.holds = slot.holds | {tenant}
            try:
                yield Place(slot.number, reuse)
                # What was cut off may run before or after this.
                slot.holds = {tenant} | others
            except CloudRejected:
                # It was answered: nothing of it comes later.
                raise
            except BaseException:
                slot.pending[tenant] = self._clock() + LINGER_SECONDS
                raise
            finally:
                slot.busy, slot.used = False, next(self._uses)

    def _chosen(self, session: str, tenant: str) -> _Slot:
        """Return the session's own slot if free, else the longest idle, best with none pending."""
        free = [slot for slot in self._slots if not slot.busy]
        own = next((slot for slot in free if slot.session == session), None)
        if own is not None:
            return own
        return min(free, key=lambda slot: (bool(self._others_pending(slot, tenant)), slot.used))

    def _others_pending(self, slot: _Slot, tenant: str) -> set[str]:
        """Return the other tenants whose cancelled requests may still run in the slot."""
        now = self._clock()
        slot.pending = {name: end for name, end in slot.pending.items() if end > now}
        return slot.pending.keys() - {tenant}


class LlamaServerEngine(HttpEngine):
    """A llama-server as an `Engine`. It has no cache salt; each slot has a prefix cache.

    A client with a tenant is given a slot, and reuses only what requests of its tenant left there.
    It reuses nothing if the server does not report its slots, or mixes up their prompts (as it does
    with `--cache-ram`). For a client without a tenant the server chooses the slot.
    """

    server: LlamaCppServer
    owner = LlamaCppServer.owner

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        super().__init__(LlamaCppServer(), url, key=key, model=model)
        # None where the server does not report its slots.
        self._slots: SlotTable | None = None
        # Whether a request to a slot reuses what that slot holds or nothing, and nothing on demand.
        self._apart: bool | None = None
        self._starts = 0
        self._look: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)
        await super().close()

    async def probe(self) -> None:
        self._forget_slot_use()
        await super().probe()

    async def verify(
        self, ids: Sequence[int], count: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        """Return verdicts on the last `count` ids; the server makes a decode step for each of them.

        If the server cannot do so in one request, each id is verified by a request of its own.
        """
        if count == 1:
            return await self._verify_one(ids, client)
        try:
            return await super().verify(ids, count, sampling, client)
        # It declines ids with an end token before the last, or with one that ends inside a
        # character; old versions decline several; none reports on tokens of its own draft model.
        except (CloudProtocolError, CloudRejected, CloudUnavailable) as error:
            # A server that is away declined nothing.
            if isinstance(error, CloudUnavailable) and not error.declined:
                raise
        ends = range(len(ids) - count + 1, len(ids) + 1)
        parts = [await self._verify_one(ids[:end], client) for end in ends]
        return Completion(
            ids=(),
            logprobs=(),
            written=count,
            verified=tuple(one for part in parts for one in part.verified),
            prompt=reduce(metered, [part.prompt for part in parts]),
            cached=reduce(metered, [part.cached for part in parts]),
            computed=reduce(metered, [part.computed for part in parts]),
            engine_seconds=reduce(metered, [part.engine_seconds for part in parts]),
        )

    async def _verify_one(self, ids: Sequence[int], client: Client) -> Completion:
        asked, last = await self._wanted(ids, 1, client), ids[-1]
        reply = await self.consulted(self.server.score(asked), client)
        with self.reading():
            if not self.server.is_inside(reply, last):
                return self.server.scored(reply, [last])
        reply = await self.consulted(self.server.score_inside(asked), client)
        with self.reading():
            return self.server.scored_inside(reply, last)

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        await self.consulted(self.server.prefill(ids, self.model), client)

    async def named(self) -> str | None:
        return self.model

    async def end_text(self) -> str | None:
        try:
            return (await self._props()).eos_token
        except (CloudProtocolError, CloudRejected):
            return None

    async def consulted(self, request: Request, client: Client) -> bytes:
        """Send a request; return the reply's body. It reuses no other tenant's KV cache."""
        if not client.tenant:
            return await self._posted(request, client, cache_prompt=True)
        slots, apart = await self._slot_use()
        if slots is None:
            return await self._posted(request, client, cache_prompt=False)
        async with slots.place(client.session, client.tenant) as place:
            reuse = place.reuse and apart
            reply = await self._posted(request, client, id_slot=place.slot, cache_prompt=reuse)
            with self.reading():
                slot, _ = self.server.slot(reply)
            if slot != place.slot:
                # It was started anew, with fewer slots.
                self._forget_slot_use()
            return reply

    async def _posted(self, request: Request, client: Client, **where: int) -> bytes:
        return await self.send(request.having(**where), client)

    async def _props(self) -> Props:
        reply = await self.send(self.server.props(self.model))
        with self.reading():
            return decoded(reply, Props)

    def _forget_slot_use(self) -> None:
        self._starts += 1
        self._apart = None

    async def _slot_use(self) -> tuple[SlotTable | None, bool]:
        """Return the slot table, if any, and whether slots keep prompts apart; probe if unknown."""
        if self.renewed and (self._look is None or self._look.done()):
            # With the same model it may have other flags.
            self._forget_slot_use()
        while self._apart is None:
            # One look for all who wait, which goes on if a deadline ends before it.
            if self._look is None or self._look.done():
                self._look = asyncio.create_task(self._find_slot_use())
                self._look.add_done_callback(lambda done: done.cancelled() or done.exception())
            await finished(self._look)
        return self._slots, self._apart

    async def _find_slot_use(self) -> None:
        starts = self._starts
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                apart = await self._probe_slots()
        except TimeoutError as error:
            raise CloudTimeout(f"{self.url!r} did not answer a check in time.") from error
        # Whatever was found of a server that was started anew meanwhile says nothing.
        if starts == self._starts:
            self._apart = apart

    async def _probe_slots(self) -> bool:
        """Return whether slots keep prompts apart; send made-up prompts to the last slot to see."""
        try:
            total = (await self._props()).total_slots
        except (CloudRejected, CloudProtocolError):
            total = None
        # A connection that this opened leads to the server that is looked at.
        self.renewed = False
        if total is None:
            return False
        # A server that was started anew holds less than the table says, never more.
        if self._slots is None or len(self._slots) != total:
            self._slots = SlotTable(total)
        # Nothing may be reused where that is forbidden, nor of a prompt that the slot held before:
        # `--cache-ram` brings one back.
        first, second = self._made_up(), self._made_up()
        asked = [(first, False), (first, False), (second, False), (first, True)]
        probes = [await self._reuses(ids, total - 1, cache=cache) for ids, cache in asked]
        return not any(probes)

    async def _reuses(self, prompt: Sequence[int], slot: int, *, cache: bool) -> bool:
        """Return whether the server reused `prompt`, or does not say, or used another slot."""
        asked = self.server.prefill(prompt, self.model)
        reply = await self._posted(asked, NOBODY, id_slot=slot, cache_prompt=cache)
        with self.reading():
            taken, cached = self.server.slot(reply)
        return taken != slot or cached is None or cached >= _NOTED

    def _made_up(self) -> list[int]:
        # Drawn anew each time: what was sent before may be held already.
        ids = sorted({token for known in self.vocabulary or ((1, 2, 3),) for token in known})
        return [secrets.choice(ids) for _ in range(_MADE_UP)]
