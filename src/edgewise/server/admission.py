"""How many answers are written at once, how many wait, and who is sent away."""

import asyncio
from collections.abc import Callable

from edgewise.server.errors import ApiError

_WEIGHT = 0.2
_LONGEST_PATIENCE = 60


class Admission:
    """`slots` answers at a time, first come first served; `queue` more may wait."""

    def __init__(self, slots: int, queue: int) -> None:
        self.slots, self.queue = slots, queue
        self.running = self.waiting = 0
        self._free = asyncio.Semaphore(slots)
        self._seconds = 1.0

    def enter(self) -> "Ticket":
        """A place in the queue; raises `ApiError` 429 with `Retry-After` where it is full."""
        if self.running + self.waiting >= self.slots + self.queue:
            # By then as many answers as wait have probably ended.
            turns = (self.waiting + 1) / self.slots
            patience = min(_LONGEST_PATIENCE, max(1, round(turns * self._seconds)))
            raise ApiError(
                429,
                f"{self.running} answers are being written and {self.waiting} wait; try again in "
                f"{patience} s.",
                kind="rate_limit_error",
                code="queue_full",
                headers={"Retry-After": str(patience)},
            )
        return Ticket(self)

    async def acquire(self) -> None:
        """Wait for a slot."""
        await self._free.acquire()

    def release(self, seconds: float) -> None:
        """Give a slot back after an answer that took so long."""
        self._seconds += _WEIGHT * (seconds - self._seconds)
        self._free.release()


class Ticket:
    """A place: waiting, then running, then over. In the event loop's thread only."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.running = False
        self._begun = 0.0
        admission.waiting += 1
        self._left = False
        self._then: list[Callable[[], None]] = []

    def at_end(self, work: Callable[[], None]) -> None:
        """Have `work` done when the place is given back."""
        self._then.append(work)

    async def turn(self) -> None:
        """Wait until the answer may be written; once it may, it may."""
        if self.running:
            return
        await self._admission.acquire()
        self._begun = asyncio.get_running_loop().time()
        self.running = True
        self._admission.waiting -= 1
        self._admission.running += 1

    def leave(self) -> None:
        """Give the place back; later calls do nothing."""
        if self._left:
            return
        self._left = True
        if self.running:
            self._admission.running -= 1
            self._admission.release(asyncio.get_running_loop().time() - self._begun)
        else:
            self._admission.waiting -= 1
        for work in self._then:
            work()
