"""The table of a llama-server's slots: who gets which, and what a request may reuse there."""

import asyncio
import contextlib
from typing import Literal, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from edgewise.engines.llama_server import LINGER_SECONDS, Place, SlotTable
from edgewise.errors import CloudRejected, CloudUnavailable
from tests.doubles.clock import Clock


async def ask(
    table: SlotTable, session: str, tenant: str, fails: BaseException | None = None
) -> Place:
    """One request and how it ends."""
    found = None
    try:
        async with table.place(session, tenant) as found:
            if fails is not None:
                raise fails
    except (CloudUnavailable, CloudRejected, asyncio.CancelledError):
        pass
    assert found is not None
    return found


def test_where_slots_are_short_the_one_unused_for_longest_is_given_away() -> None:
    async def work() -> None:
        table = SlotTable(3)
        async with table.place("s", "a") as one, table.place("s", "a") as other:
            assert one.slot != other.slot
        table = SlotTable(3)
        slots = [(await ask(table, session, "a")).slot for session in "stu"]
        await ask(table, "s", "a")
        assert (await ask(table, "v", "a")).slot == slots[1]
        assert (await ask(table, "t", "a")).slot == slots[2]
        assert (await ask(table, "s", "a")).slot == slots[0]

    asyncio.run(work())


def test_one_request_a_slot_and_those_who_gave_up_waiting_leave_no_trace() -> None:
    async def work() -> None:
        table = SlotTable(2)
        held = 0

        async def hold(session: str) -> int:
            nonlocal held
            async with table.place(session, "a") as place:
                held += 1
                assert held <= 2
                await asyncio.sleep(0.002)
                held -= 1
                return place.slot

        asked = [asyncio.create_task(hold(str(n))) for n in range(20)]
        await asyncio.sleep(0.001)
        for task in asked[5:10]:
            task.cancel()
        slots = await asyncio.gather(*asked, return_exceptions=True)
        assert {slot for slot in slots if isinstance(slot, int)} == {0, 1}
        assert sum(isinstance(slot, int) for slot in slots) == 15

    asyncio.run(work())


class Step(NamedTuple):
    """A request after `pause` seconds; one that runs `later` is cut off before."""

    tenant: str
    session: int
    pause: float
    how: Literal["whole", "cut before", "cut after", "cut and run later", "declined"]
    later: float


STEPS = st.lists(
    st.builds(
        Step,
        tenant=st.sampled_from("ab"),
        session=st.integers(0, 1),
        pause=st.sampled_from([0.0, 1.0, LINGER_SECONDS / 2, LINGER_SECONDS + 1]),
        how=st.sampled_from(
            ["whole", "whole", "cut before", "cut after", "cut and run later", "declined"]
        ),
        later=st.sampled_from([0.5, LINGER_SECONDS / 3, LINGER_SECONDS - 1]),
    ),
    max_size=12,
)


class Server:
    """Slots with a prompt of somebody's each; `coming` are requests that will run at a time."""

    def __init__(self, slots: int) -> None:
        self.holds = ["somebody before"] * slots
        self.coming: list[tuple[float, int, str]] = []

    def run(self, place: Place, tenant: str) -> None:
        assert not place.reuse or self.holds[place.slot] == tenant, "another's prompt was reused"
        self.holds[place.slot] = tenant

    def catch_up(self, now: float) -> None:
        """What was cut off and runs all the same; nobody hears what it reused."""
        for request in sorted(self.coming):
            if request[0] <= now:
                self.coming.remove(request)
                self.holds[request[1]] = request[2]


@given(slots=st.integers(1, 2), steps=STEPS)
def test_no_request_reuses_what_another_tenant_left(slots: int, steps: list[Step]) -> None:
    """Against a server that runs what was cut off before, at once, or some time later."""
    clock = Clock()
    table, server = SlotTable(slots, clock=clock), Server(slots)

    async def one(step: Step) -> None:
        session = f"{step.tenant}{step.session}"
        with contextlib.suppress(CloudUnavailable, CloudRejected):
            async with table.place(session, step.tenant) as place:
                if step.how in ("whole", "cut after"):
                    server.run(place, step.tenant)
                if step.how == "cut and run later":
                    server.coming.append((clock.now + step.later, place.slot, step.tenant))
                if step.how == "declined":
                    raise CloudRejected("too long")
                if step.how != "whole":
                    raise CloudUnavailable("cut")

    async def work() -> None:
        for step in steps:
            clock.now += step.pause
            server.catch_up(clock.now)
            await one(step)

    asyncio.run(work())
