"""Large frames, taken apart in a thread: one of a key at a time, a tenth of the time at most."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

from edgewise.keys.keys import Key
from edgewise.keys.limits import KeyLimits, Unbilled
from edgewise.wire.protocol import Ask, FromDevice, Ledger, Push, from_device

LARGE = 1 << 14
"""Bytes; smaller frames take less than a tenth of a millisecond."""

LARGE_IDS = 4096
"""As many ids are charged, or listed for an engine, in a step of their own."""

PAUSES = 9.0
"""How much longer than a large frame took its key waits for the next."""


class Received(NamedTuple):
    """A frame, and the ids of it: hashed already where they are many."""

    frame: FromDevice
    ids: Sequence[int] | Ledger


class LargeFrames:
    """All connections' large frames. A key that sends them without end delays only itself."""

    def __init__(self, limits: KeyLimits) -> None:
        self._limits = limits
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def received(self, data: bytes, key: Key, unbilled: Unbilled) -> Received:
        """Once the key has its turn and owes nothing; its ids are charged before the next turn.

        Raises `CloudProtocolError` for bytes that are no frame.
        """
        turn = self._turns.setdefault(key.name, asyncio.Lock())
        await turn.acquire()
        pause = 0.0
        try:
            await self._limits.pay(key, unbilled)
            begun = time.monotonic()
            try:
                received = await asyncio.to_thread(_taken_apart, data)
            finally:
                pause = PAUSES * (time.monotonic() - begun)
            unbilled.ids += len(received.ids)
            await self._limits.charge(key, unbilled)
        finally:
            asyncio.get_running_loop().call_later(pause, turn.release)
        return received


async def listed(ids: Ledger) -> list[int]:
    """As an engine takes them."""
    if len(ids) <= LARGE_IDS:
        return ids.ids
    return await asyncio.to_thread(lambda: ids.ids)


def _taken_apart(data: bytes) -> Received:
    frame = from_device(data)
    return Received(frame, Ledger(frame.ids) if isinstance(frame, Ask | Push) else ())
