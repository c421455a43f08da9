"""The large model behind a llama-server: `POST /completion`, token ids both ways.

A slot reuses whatever prompt it holds, whoever sent it, and response times reveal how much was
reused. So a request may only reuse what its own tenant has put there.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import reduce
from itertools import count, zip_longest
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from edgewise.completion import Completion, metered
from edgewise.engines.base import NOBODY, TOP, Client, decoded
from edgewise.engines.http import HttpEngine
from edgewise.engines.replies import LlamaTimings, completion_of, llama_sampling, verification_of
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable
from edgewise.sampling import Sampling

# Without it the reply echoes the prompt.
_FIELDS = ["tokens", "completion_probabilities", "timings", "stop_type", "id_slot"]

# Ids of a prompt that is made up to see what is reused, and how many of them are no coincidence.
_MADE_UP, _NOTED = 32, 16

# More than any logit: such an id is written wherever it may be.
_CERTAIN = 1000.0

LINGER_SECONDS = 60.0
"""Longest time until the server may still start a request that was cancelled."""

_UNKNOWN = ""


class Place(NamedTuple):
    """The slot of a request; `reuse` if it holds nothing of another tenant."""

    slot: int
    reuse: bool


class _Slot:
    """`holds`: tenants whose prompts it may hold; `pending`: until when requests may still run."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.session = ""
        self.busy = False
        self.used = 0
        self.holds = {_UNKNOWN}
        self.pending: dict[str, float] = {}


class SlotTable:
    """Slots of one server, each with one request at a time; the server would queue them too.

    A session keeps its slot until another needs it: where slots are short, the one that was free
    for longest is given away. Only a request that reused nothing and was answered in full proves
    that a slot is rid of what it held. Used in one event loop.
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
        """A slot until the block ends; waits for one. The block is the request and its answer."""
        async with self._free:
            slot = self._chosen(session, tenant)
            others = self._others_pending(slot, tenant)
            # Those who may yet write are among them.
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
        """The session's own; else the one free for longest, if possible without others pending."""
        free = [slot for slot in self._slots if not slot.busy]
        own = next((slot for slot in free if slot.session == session), None)
        if own is not None:
            return own
        return min(free, key=lambda slot: (bool(self._others_pending(slot, tenant)), slot.used))

    def _others_pending(self, slot: _Slot, tenant: str) -> set[str]:
        """Other tenants whose requests may yet run in the slot."""
        now = self._clock()
        slot.pending = {name: end for name, end in slot.pending.items() if end > now}
        return slot.pending.keys() - {tenant}


class _TopLogprob(msgspec.Struct):
    id: int
    logprob: float | None = None


class _Probability(_TopLogprob):
    top_logprobs: list[_TopLogprob] = []


class _Completion(msgspec.Struct):
    tokens: list[int]
    completion_probabilities: list[_Probability] = []
    timings: LlamaTimings | None = None
    stop_type: str = "limit"


class _Props(msgspec.Struct):
    total_slots: Annotated[int, msgspec.Meta(ge=1, le=65_536)] | None = None
    eos_token: str | None = None


class _Placed(msgspec.Struct):
    id_slot: int = -1
    timings: LlamaTimings = msgspec.field(default_factory=LlamaTimings)


class LlamaServerEngine(HttpEngine):
    """Implements `Engine`. It has no salt and no priority; the prefix cache is per slot.

    A client with a tenant is given a slot and reuses only what its own tenant left there, or
    nothing at a server that mixes up its slots' prompts (`--cache-ram` does). Without a tenant the
    server chooses the slot.
    """

    dialect, owner, verifies = "llama-server", "llamacpp", True

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        super().__init__(url, key=key, model=model)
        # None where none can be named.
        self._slots: SlotTable | None = None
        # Whether a request to a slot reuses what that slot holds or nothing, and nothing on demand.
        self._apart: bool | None = None
        self._starts = 0
        self._probing = asyncio.Lock()

    async def probe(self) -> None:
        self._forget_slot_use()
        await super().probe()

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        return await self._written(ids, n, client, llama_sampling(sampling, len(ids)))

    async def verify(
        self, ids: Sequence[int], count: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        """See `Engine.verify`. As dear as writing the ids: a decode step each.

        It tells no logprobs of a prompt, but those of what it writes, before sampling: a grammar
        makes it write these ids in one request. It declines one with an end token inside, an old
        one declines any, and of what it drafted it tells nothing: then it is asked for one a time.
        """
        try:
            return await self._forced(ids, count, client)
        except (CloudProtocolError, CloudRejected, CloudUnavailable) as error:
            lost = isinstance(error, CloudUnavailable) and not error.declined
            if count == 1 or lost:
                raise
        ends = range(len(ids) - count + 1, len(ids) + 1)
        parts = [await self._forced(ids[:end], 1, client) for end in ends]
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

    async def _forced(self, ids: Sequence[int], count: int, client: Client) -> Completion:
        """A verification by a server that can write the last `count` ids only.

        An end token can be no part of a grammar, but may be written at its end.
        """
        *first, last = ids[-count:]
        fields: dict[str, Any] = {"temperature": 0, "logit_bias": [[last, _CERTAIN]]}
        if first:
            rule = " ".join(f"<[{token}]>" for token in first)
            fields["grammar"] = f"root ::= {rule} <[{last}]>?"
        told = await self._written(ids[:-count], count, client, fields)
        return verification_of(ids[-count:], told, self.url, written=count)

    async def _written(
        self, ids: Sequence[int], n: int, client: Client, fields: Mapping[str, Any]
    ) -> Completion:
        body = {
            "prompt": ids,
            "n_predict": n,
            "return_tokens": True,
            "n_probs": TOP,
            "response_fields": _FIELDS,
            **fields,
        }
        reply = decoded(await self._completion(body, client), _Completion, self.dialect)
        # By position, since an id may come twice; a server may leave the last ones out.
        reported = zip_longest(reply.tokens, reply.completion_probabilities[: len(reply.tokens)])
        rows = [
            row if row is not None and row.id == token else _Probability(token)
            for token, row in reported
        ]
        timings = reply.timings or LlamaTimings()
        return completion_of(
            reply.tokens,
            [row.logprob for row in rows],
            [[(top.id, top.logprob) for top in row.top_logprobs] for row in rows],
            stopped=reply.stop_type == "eos",
            prompt=metered(timings.cache_n, timings.prompt_n),
            cached=timings.cache_n,
            seconds=(timings.prompt_ms + timings.predicted_ms) / 1000,
        )

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        await self._completion(
            {"prompt": ids, "n_predict": 0, "response_fields": ["id_slot"]}, client
        )

    async def tokenize(self, text: str) -> list[int] | None:
        body = {"content": text, "add_special": False, "parse_special": False}
        return await self.tokens({**body, **self._named()})

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        return await self.text_of({"tokens": ids, **self._named()}, client)

    async def end_text(self) -> str | None:
        try:
            return (await self._props()).eos_token
        except (CloudProtocolError, CloudRejected):
            return None

    async def _completion(self, body: Mapping[str, Any], client: Client) -> bytes:
        """The reply to `body`, for which nothing of another tenant's is reused."""
        if not client.tenant:
            return await self._posted(body, client, {"cache_prompt": True})
        slots, apart = await self._slot_use()
        if slots is None:
            return await self._posted(body, client, {"cache_prompt": False})
        async with slots.place(client.session, client.tenant) as place:
            where = {"id_slot": place.slot, "cache_prompt": place.reuse and apart}
            answered = await self._posted(body, client, where)
            if decoded(answered, _Placed, self.dialect).id_slot != place.slot:
                # It was started anew, with fewer slots.
                self._forget_slot_use()
            return answered

    async def _posted(
        self, body: Mapping[str, Any], client: Client, where: Mapping[str, Any]
    ) -> bytes:
        whole = {**body, **where, **self._named()}
        return await self.post("/completion", whole, client, ids=len(body["prompt"]))

    def _named(self) -> dict[str, str]:
        """The model's name: a server of several models chooses by it."""
        return {} if self.model is None else {"model": self.model}

    async def _props(self) -> _Props:
        path = f"/props?{urlencode(self._named())}".removesuffix("?")
        return decoded(await self.get(path), _Props, self.dialect)

    def _forget_slot_use(self) -> None:
        self._starts += 1
        self._apart = None

    async def _slot_use(self) -> tuple[SlotTable | None, bool]:
        """The slots and whether they are apart, probed when first needed; raises a `CloudError`."""
        async with self._probing:
            while self._apart is None:
                starts, apart = self._starts, await self._probe_slots()
                if starts == self._starts:
                    self._apart = apart
            return self._slots, self._apart

    async def _probe_slots(self) -> bool:
        """Whether they are apart: by prompts that nobody has asked before, sent to the last one."""
        try:
            total = (await self._props()).total_slots
        except (CloudRejected, CloudProtocolError):
            total = None
        if total is None:
            return False
        # A server that was started anew holds less than the table says, never more.
        if self._slots is None or len(self._slots) != total:
            self._slots = SlotTable(total)
        first, second = self._made_up(), self._made_up()
        there = {"id_slot": total - 1, "cache_prompt": False}
        probes = [await self._reuses(prompt, there) for prompt in (first, first, second)]
        probes.append(await self._reuses(first, {**there, "cache_prompt": True}))
        return not any(probes)

    async def _reuses(self, prompt: Sequence[int], where: Mapping[str, Any]) -> bool:
        """Whether so much was reused, or another slot took it, that it cannot be chance."""
        body = {"prompt": prompt, "n_predict": 0, "response_fields": ["timings", "id_slot"]}
        reply = decoded(await self._posted(body, NOBODY, where), _Placed, self.dialect)
        elsewhere = reply.id_slot != where.get("id_slot", reply.id_slot)
        return elsewhere or reply.timings.cache_n is None or reply.timings.cache_n >= _NOTED

    def _made_up(self) -> list[int]:
        ids = sorted({token for known in self.vocabulary or ((1, 2, 3),) for token in known})
        return [secrets.choice(ids) for _ in range(_MADE_UP)]
