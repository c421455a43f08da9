"""The table of a llama-server's slots: who gets which, and what a request may reuse there."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.engines.llama_slots import LINGER_SECONDS, Place, SlotTable
from edgewise.errors import CloudRejected, CloudUnavailable


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


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


def test_a_session_keeps_its_slot_and_reuses_what_it_left_there() -> None:
    async def work() -> None:
        table = SlotTable(2)
        first = await ask(table, "s", "a")
        other = await ask(table, "t", "b")
        assert first.slot != other.slot
        # Nobody knows what a gateway before this one has left in a slot.
        assert not first.reuse
        assert not other.reuse
        for _ in range(3):
            assert await ask(table, "s", "a") == Place(first.slot, True)
            assert await ask(table, "t", "b") == Place(other.slot, True)

    run(work())


def test_where_slots_are_short_the_one_unused_for_longest_is_given_away() -> None:
    async def work() -> None:
        table = SlotTable(3)
        slots = [(await ask(table, session, "a")).slot for session in "stu"]
        await ask(table, "s", "a")
        assert (await ask(table, "v", "a")).slot == slots[1]
        assert (await ask(table, "t", "a")).slot == slots[2]
        assert (await ask(table, "s", "a")).slot == slots[0]

    run(work())


def test_another_tenants_slot_is_reused_only_after_an_answer_that_reused_nothing() -> None:
    async def work() -> None:
        clock = Clock()
        table = SlotTable(1, clock=clock)
        await ask(table, "s", "a")
        assert (await ask(table, "s", "a")).reuse
        for fault in (CloudUnavailable("cut"), CloudRejected("too long"), asyncio.CancelledError()):
            assert not (await ask(table, "t", "b", fault)).reuse
        assert not (await ask(table, "t", "b")).reuse
        assert (await ask(table, "t", "b")).reuse
        # And now the other way round, where b's request was cut off and may yet come to run.
        for _ in range(3):
            assert not (await ask(table, "s", "a")).reuse
        clock.now += LINGER_SECONDS + 1
        assert not (await ask(table, "s", "a")).reuse
        assert (await ask(table, "s", "a")).reuse

    run(work())


def test_a_session_cut_off_reuses_its_own_all_the_same() -> None:
    async def work() -> None:
        table = SlotTable(1)
        await ask(table, "s", "a")
        await ask(table, "s", "a", asyncio.CancelledError())
        assert (await ask(table, "s", "a")).reuse

    run(work())


def test_a_slot_that_another_may_yet_write_is_taken_last() -> None:
    async def work() -> None:
        table = SlotTable(2)
        cut = await ask(table, "s", "a", asyncio.CancelledError())
        await ask(table, "t", "a")
        assert (await ask(table, "u", "b")).slot != cut.slot

    run(work())


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

    run(work())


def test_two_requests_of_one_session_at_once_have_slots_of_their_own() -> None:
    async def work() -> None:
        table = SlotTable(2)
        async with table.place("s", "a") as one, table.place("s", "a") as other:
            assert one.slot != other.slot

    run(work())


Step = tuple[int, int, str]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from(["whole", "cut before", "cut after", "cut and run later", "declined"]),
    ),
    max_size=40,
)


@given(slots=st.integers(1, 3), steps=STEPS, late=st.lists(st.integers(0, 5), max_size=40))
def test_no_request_reuses_what_another_tenant_left(
    slots: int, steps: list[Step], late: list[int]
) -> None:
    """Against a server that runs what was cut off before, at once, or so many requests later."""
    clock = Clock()
    table = SlotTable(slots, clock=clock)
    holds = ["somebody before"] * slots
    coming: list[tuple[int, int, str, bool]] = []

    def write(slot: int, tenant: str, reuse: bool) -> None:
        assert not reuse or holds[slot] == tenant, "another tenant's prompt was reused"
        holds[slot] = tenant

    async def work() -> None:
        for number, (tenant, session, how) in enumerate(steps):
            clock.now += 1.0
            for at, slot, who, reuse in list(coming):
                if at <= number:
                    coming.remove((at, slot, who, reuse))
                    holds[slot] = who
            name = f"tenant {tenant}"
            faults = {"whole": None, "declined": CloudRejected("no")}
            fault = faults.get(how, CloudUnavailable("cut"))
            place = await ask_while(name, f"{name} {session}", fault, how)
            if how == "cut and run later":
                wait = late[number] if number < len(late) else 1
                coming.append((number + wait, place.slot, name, place.reuse))

    async def ask_while(
        tenant: str, session: str, fault: BaseException | None, how: str
    ) -> Place:
        found = None
        try:
            async with table.place(session, tenant) as found:
                if how in ("whole", "cut after"):
                    write(found.slot, tenant, found.reuse)
                if fault is not None:
                    raise fault
        except (CloudUnavailable, CloudRejected):
            pass
        assert found is not None
        return found

    run(work())


@pytest.mark.parametrize("slots", [1, 16])
def test_its_size(slots: int) -> None:
    assert len(SlotTable(slots)) == slots
