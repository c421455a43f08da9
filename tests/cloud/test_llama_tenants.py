"""A llama-server's slots: a tenant has its own, and reuses nothing of others'."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.addresses import bundled
from edgewise.edge.vocabulary import common_prefix
from edgewise.engines.base import NOBODY, Client
from edgewise.engines.llama_server import LINGER_SECONDS, LlamaServerEngine, SlotTable
from edgewise.engines.vocabulary_check import VocabularyCheck
from edgewise.errors import CloudError, CloudProtocolError, CloudRejected, CloudUnavailable
from edgewise.sampling import Sampling
from tests.doubles.clock import Clock
from tests.doubles.scripted_engine import Reply, ScriptedEngine
from tests.llama_server_process import RECOMMENDED, llama_server

pytestmark = pytest.mark.anyio

FOUR = [Client(f"s{n}", tenant=f"t{n}") for n in range(4)]
A, B = Client("sa", tenant="a"), Client("sb", tenant="b")
LONG = list(range(10, 60))


class Slots:
    """A llama-server's slots. `ram`: prompts that a slot loses come back in any other.

    `asked` holds the requests about `LONG`; `looks` counts those of probes.
    """

    def __init__(self, count: int = 2, *, ram: bool = False) -> None:
        self.held: list[list[int]] = [[] for _ in range(count)]
        self.ram = ram
        self.lost: list[list[int]] = []
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.looks = 0

    def props(self, body: Any) -> tuple[int, Any]:
        self.looks += 1
        return 200, {"total_slots": len(self.held)}

    def complete(self, body: Any) -> tuple[int, Any]:
        prompt, count = body["prompt"], len(self.held)
        if prompt[-len(LONG) :] == LONG:
            self.asked.append(body)
        else:
            self.looks += 1
        slot = body.get("id_slot", -1) % count
        known = [self.held[slot], *(self.lost if self.ram else [])]
        cached = max(common_prefix(prompt, one) for one in known) if body["cache_prompt"] else 0
        self.lost.append(self.held[slot])
        self.held[slot] = prompt
        timings = {"cache_n": cached, "prompt_n": len(prompt) - cached}
        return 200, {"tokens": [97], "id_slot": slot, "timings": timings}

    @property
    def where(self) -> list[tuple[int | None, bool]]:
        """Slot and reuse of each request."""
        return [(body.get("id_slot"), body["cache_prompt"]) for body in self.asked]


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[LlamaServerEngine]:
    engine = LlamaServerEngine(url)
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def at(
    slots: Slots, replies: Mapping[str, Reply] = {}, pause: float = 0.0
) -> AsyncGenerator[LlamaServerEngine]:
    """An engine in front of `slots`, whose server says what `replies` say instead."""
    with closing(ScriptedEngine()) as server:
        server.replies = {"/props": slots.props, "/completion": slots.complete, **replies}
        server.pause = pause
        async with opened(server.url) as engine:
            yield engine
        slots.paths = server.paths


async def ask(engine: LlamaServerEngine, client: Client, ids: Sequence[int] = LONG) -> int | None:
    """How many ids were cached."""
    return (await engine.complete(list(ids), 1, Sampling(), client)).cached


async def test_a_tenant_has_a_slot_and_reuses_its_own() -> None:
    slots = Slots()
    async with at(slots) as engine:
        await engine.probe()
        for _ in range(2):
            await engine.prefill(LONG, A)
            assert await ask(engine, B) in (0, len(LONG))
    (first, second), again = slots.where[:2], slots.where[2:]
    assert {first, second} == {(0, False), (1, False)}
    assert again == [(first[0], True), (second[0], True)]


async def test_without_a_tenant_the_server_chooses_and_is_asked_nothing_else() -> None:
    slots = Slots()
    async with at(slots) as engine:
        await ask(engine, NOBODY)
        await ask(engine, Client("s"))
    assert slots.where == [(None, True), (None, True)]
    assert slots.paths == ["/completion"] * 2


class Deaf(Slots):
    """Reuses a prompt whatever it is asked."""

    def complete(self, body: Any) -> tuple[int, Any]:
        status, answer = super().complete({**body, "cache_prompt": True})
        if self.asked:
            self.asked[-1] = body
        return status, answer


class Elsewhere(Slots):
    """Has a slot of its own choice for everything."""

    def complete(self, body: Any) -> tuple[int, Any]:
        return super().complete({**body, "id_slot": 0})


@pytest.mark.parametrize("kind", [partial(Slots, ram=True), Deaf, Elsewhere])
async def test_where_slots_are_not_apart_nothing_is_reused(kind: Callable[[], Slots]) -> None:
    slots = kind()
    async with at(slots) as engine:
        for client in (A, A, A, B, B):
            await ask(engine, client)
    assert [reuse for _, reuse in slots.where[1:]] == [False] * 4


NO_COUNT = [(404, b"no such path"), (200, b"<html>")]
NO_COUNT += [(200, {"total_slots": count}) for count in (0, 10**9, "2")]


@pytest.mark.parametrize("props", NO_COUNT)
async def test_a_server_that_does_not_say_how_many_slots_it_has(props: tuple[int, Any]) -> None:
    slots = Slots()
    async with at(slots, {"/props": lambda body: props}) as engine:
        assert [await ask(engine, client) for client in (A, A)] == [0, 0]
    assert slots.where == [(None, False)] * 2


async def test_a_request_that_failed_proves_nothing() -> None:
    slots = Slots(1)
    replies: list[tuple[int, Any]] = [(200, b"{"), (500, b"oops"), (400, b"too long")]

    def complete(body: Any) -> tuple[int, Any]:
        answer = slots.complete(body)
        return replies.pop() if body["prompt"][0] == 99 else answer

    async with at(slots, {"/completion": complete}) as engine:
        await ask(engine, A)
        for error in (CloudRejected, CloudError, CloudProtocolError):
            with pytest.raises(error):
                await ask(engine, B, [99, *LONG])
            assert slots.where[-1] == (0, False)
        assert await ask(engine, B) == 0
        assert await ask(engine, B) == len(LONG)


async def test_a_server_that_comes_back_with_fewer_slots_is_looked_at_again() -> None:
    """Numbers beyond its last slot wrap around there: two keys would share one."""
    slots = Slots(4)
    async with at(slots) as engine:
        for client in FOUR:
            await ask(engine, client)
        slots.held = [[], []]
        for client in FOUR:
            await ask(engine, client)
        slots.asked.clear()
        for client in FOUR:
            assert await ask(engine, client) == 0
    assert {body["id_slot"] for body in slots.asked} == {0, 1}


async def test_a_probe_looks_again_and_keeps_what_still_holds() -> None:
    slots = Slots(8)
    async with at(slots) as engine:
        await ask(engine, A)
        await engine.probe()
        assert await ask(engine, A) == len(LONG)
        slots.ram = True
        await engine.probe()
        assert await ask(engine, A) == 0


async def test_a_server_started_anew_is_looked_at_again_and_one_that_goes_on_is_not() -> None:
    """Without a probe, since its vocabulary is the same: its flags may be others."""
    slots = Slots()

    async def accepting() -> None: ...

    async def cached(client: Client) -> int | None:
        return (await check.complete(LONG, 1, Sampling(), client)).cached

    with closing(ScriptedEngine()) as server:
        server.replies = {"/props": slots.props, "/completion": slots.complete}
        async with opened(server.url) as engine:
            check = VocabularyCheck(engine, accepting)
            await check.run()
            for _ in range(3):
                # Side by side, over connections that are opened for them.
                await asyncio.gather(*map(cached, (A, B)), check.run())
            assert await cached(A) == len(LONG)
            assert server.paths.count("/props") == 1
            server.stop()
            slots.held, slots.ram = [[], []], True
            server.start()
            await check.run()
            assert [await cached(client) for client in (A, B, A, B)] == [0] * 4
            await check.close()


@pytest.mark.parametrize("asked", [0, 1, 2, 4], ids="asked {}".format)
async def test_those_who_come_while_it_is_looked_at_wait_for_that_one_look(asked: int) -> None:
    """It goes on if one leaves in the middle of it, `asked` requests in: it may take longer."""
    slots = Slots(4)
    async with at(slots, pause=0.02) as engine:
        impatient = asyncio.create_task(ask(engine, A))
        while slots.looks < asked:
            await asyncio.sleep(0.001)
        impatient.cancel()
        await asyncio.gather(*(ask(engine, client) for client in FOUR))
    assert slots.paths.count("/props") == 1
    assert len({body["id_slot"] for body in slots.asked}) == 4


async def test_a_look_that_is_never_answered_ends_and_another_follows(monkeypatch: Any) -> None:
    async def stalled(*_: object, **__: object) -> bytes:
        return await asyncio.Future()

    async with at(Slots()) as engine:
        with monkeypatch.context() as patch:
            patch.setattr("edgewise.engines.llama_server.PROBE_SECONDS", 0.01)
            patch.setattr(engine, "send", stalled)
            with pytest.raises(CloudError):
                await ask(engine, A)
        assert await ask(engine, A) == 0


async def test_a_look_ends_with_the_engine() -> None:
    slots = Slots()
    async with at(slots, pause=0.02) as engine:
        asking = asyncio.create_task(ask(engine, A))
        while not slots.looks:
            await asyncio.sleep(0.001)
    with pytest.raises(CloudUnavailable):
        await asking


FLAGS: dict[str, Mapping[str, float]] = {
    "none": {},
    "one slot": {"n_parallel": 1},
    "one cache for all slots": {"kv_unified": True, "n_parallel": 3},
    "by similarity": {"cache_ram_mib": 0},
    "recommended": RECOMMENDED,
}


@pytest.mark.deep
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
async def test_at_a_real_server_only_what_the_tenant_asked_is_cached(
    flags: Mapping[str, float],
) -> None:
    """Three tenants with two sessions each on fewer slots, prompts that begin alike, some cut."""
    rng = random.Random(7)
    roots = [[rng.randrange(10, 1000) for _ in range(60)] for _ in range(2)]
    clients = [Client(f"{t}{s}", tenant=t) for t in "abc" for s in range(2)]
    mine: dict[str, list[list[int]]] = {"a": [], "b": [], "c": []}
    cached: list[int] = []

    async def one(engine: LlamaServerEngine, client: Client) -> None:
        root = rng.choice(roots)
        prompt = [*root[: rng.randrange(20, 60)], *rng.choices(range(10, 30), k=3)]
        before = [*mine[client.tenant]]
        mine[client.tenant].append(prompt)
        task = asyncio.create_task(engine.complete(prompt, 1, Sampling(), client))
        if rng.random() < 0.2:
            await asyncio.sleep(0.001)
            task.cancel()
        try:
            completion = await task
        except asyncio.CancelledError:
            return
        assert completion.cached is not None
        # Two sessions of a tenant may ask side by side.
        allowed = max((common_prefix(prompt, other) for other in before), default=0)
        assert completion.cached <= allowed, "another tenant's prompt was reused"
        cached.append(completion.cached)

    with llama_server(bundled("cloud"), flags=flags) as url:
        async with opened(url) as engine:
            await engine.probe()
            for _ in range(25):
                await asyncio.gather(*(one(engine, who) for who in rng.sample(clients, 3)))
    assert len(cached) > 40


async def test_where_slots_are_short_the_one_unused_for_longest_is_given_away() -> None:
    async def placed(session: str) -> int:
        async with table.place(session, "a") as found:
            return found.slot

    table = SlotTable(3)
    async with table.place("s", "a") as one, table.place("s", "a") as other:
        assert one.slot != other.slot
    table = SlotTable(3)
    slots = [await placed(session) for session in "stus"]
    assert [await placed(session) for session in "vts"] == [slots[1], slots[2], slots[0]]


async def test_one_request_a_slot_and_those_who_gave_up_waiting_leave_no_trace() -> None:
    table, held = SlotTable(2), set[int]()

    async def hold(session: str) -> int:
        async with table.place(session, "a") as place:
            assert place.slot not in held
            held.add(place.slot)
            await asyncio.sleep(0.002)
            held.remove(place.slot)
            return place.slot

    asked = [asyncio.create_task(hold(str(n))) for n in range(20)]
    await asyncio.sleep(0.001)
    for task in asked[5:10]:
        task.cancel()
    slots = await asyncio.gather(*asked, return_exceptions=True)
    assert {slot for slot in slots if isinstance(slot, int)} == {0, 1}
    assert sum(isinstance(slot, int) for slot in slots) == 15


class Step(NamedTuple):
    """A request after `pause` seconds; one that runs `later` is cut off before."""

    tenant: str
    session: int
    pause: float
    how: str
    later: float


STEPS = st.builds(
    Step,
    tenant=st.sampled_from("ab"),
    session=st.integers(0, 1),
    pause=st.sampled_from([0.0, 1.0, LINGER_SECONDS / 2, LINGER_SECONDS + 1]),
    how=st.sampled_from(["whole", "whole", "before", "after", "and runs later", "declined"]),
    later=st.sampled_from([0.5, LINGER_SECONDS / 3, LINGER_SECONDS - 1]),
)


@given(slots=st.integers(1, 2), steps=st.lists(STEPS, max_size=12))
async def test_no_request_reuses_what_another_tenant_left(slots: int, steps: list[Step]) -> None:
    """Against a server that runs what was cut off before, at once, or some time later."""
    clock = Clock()
    table, holds = SlotTable(slots, clock=clock), ["somebody before"] * slots
    # Requests that were cut off and run at a time all the same; nobody hears what they reused.
    coming: list[tuple[float, int, str]] = []

    async def one(step: Step) -> None:
        async with table.place(f"{step.tenant}{step.session}", step.tenant) as place:
            if step.how in ("whole", "after"):
                assert not place.reuse or holds[place.slot] == step.tenant
                holds[place.slot] = step.tenant
            if step.how == "and runs later":
                coming.append((clock.now + step.later, place.slot, step.tenant))
            if step.how == "declined":
                raise CloudRejected("too long")
            if step.how != "whole":
                raise CloudUnavailable("cut")

    for step in steps:
        clock.now += step.pause
        for request in sorted(coming):
            if request[0] <= clock.now:
                coming.remove(request)
                holds[request[1]] = request[2]
        with contextlib.suppress(CloudUnavailable, CloudRejected):
            await one(step)
