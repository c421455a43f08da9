"""Which slot of a llama-server a session's requests go to, and whose prompts a slot may hold.

A slot reuses whatever prompt it holds, whoever sent it, and how long a request takes tells how
much of it was reused. So a request may only reuse what its own tenant has put there.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple

from edgewise.errors import CloudRejected

LINGER_SECONDS = 60.0
"""How long the server may still come to run a request that was cut off."""

_NOBODY_KNOWS = ""


class Place(NamedTuple):
    """Where a request goes: `reuse` says whether its slot holds nothing of another tenant's."""

    slot: int
    reuse: bool


class _Slot:
    """`holds` are the tenants whose prompts it may hold; `late` those who may yet write, until."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.session = ""
        self.busy = False
        self.used = 0
        self.holds = {_NOBODY_KNOWS}
        self.late: dict[str, float] = {}


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
            others = self._late(slot, tenant)
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
                slot.late[tenant] = self._clock() + LINGER_SECONDS
                raise
            finally:
                slot.busy, slot.used = False, next(self._uses)

    def _chosen(self, session: str, tenant: str) -> _Slot:
        """The session's own; else the one that was free for longest, of those nobody else's late
        request may spoil if there are any."""
        free = [slot for slot in self._slots if not slot.busy]
        own = next((slot for slot in free if slot.session == session), None)
        return own or min(free, key=lambda slot: (bool(self._late(slot, tenant)), slot.used))

    def _late(self, slot: _Slot, tenant: str) -> set[str]:
        """Other tenants whose requests may yet run in the slot."""
        now = self._clock()
        slot.late = {who: until for who, until in slot.late.items() if until > now}
        return slot.late.keys() - {tenant}
