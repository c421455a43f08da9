"""A network emulator: a TCP proxy on 127.0.0.1 that delays, slows, stalls or cuts connections.

A client's first byte on a new connection takes one round trip longer, for TCP's handshake.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Literal

import msgspec
from anyio.from_thread import start_blocking_portal

# What a relay reads at a time.
_CHUNK = 1 << 14
# The payload of a TCP segment over Ethernet: losses strike one at a time.
_PACKET = 1460
# Linux waits at least so long before it sends a segment again.
_LEAST_RTO = 0.2

Spoil = Callable[[bytes], bytes]
"""Maps bytes on their way to the client to what the client gets instead."""

Direction = Literal["up", "down"]
"""Up is from the client to the target, down is back."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The quality of an emulated link.

    `round_trip` is in seconds; `bandwidth` in bits a second (0: unlimited), for each connection and
    direction. `loss` is the fraction of packets lost, from 0 to 1. As in TCP, all bytes come, in
    order: a piece (up to 16 KiB) with a lost packet comes max(0.2 s, 2 round trips) later.
    """

    round_trip: float = 0.0
    loss: float = 0.0
    bandwidth: float = 0.0


class Link:
    """An emulated link: forwards TCP connections from a local `port` to `target` (host, port).

    It runs in a thread of its own until `close`. `quality` may be changed at any time; a change of
    `target` is for new connections. `connections` counts the connections accepted so far, `up` the
    bytes received from clients, `down` those received from the target.
    """

    def __init__(self, host: str, port: int, quality: Quality | None = None, seed: int = 0) -> None:
        """Forward to `host` and `port`. `seed` decides which packets are lost."""
        self.quality = quality or Quality()
        self.target = (host, port)
        self._rng = random.Random(seed)
        self._open = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._spoil: Spoil | None = None
        self._hangs_up = False
        self.up = self.down = self.connections = self.port = 0
        self._server: asyncio.Server | None = None
        self._thread = ExitStack()
        self._portal = self._thread.enter_context(start_blocking_portal())
        self.restore()

    @property
    def url(self) -> str:
        """The URL of the link's local end: http://127.0.0.1 with its port."""
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset every connection; new ones are still accepted."""
        self._portal.call(self._cut)

    def refuse(self) -> None:
        """Reset every connection and accept none, until `restore`."""
        self._portal.call(self._refuse)

    def restore(self) -> None:
        """Accept connections again after `refuse`, and let stalled ones continue."""
        self._portal.call(self._restore)

    def stall(self) -> None:
        """Let no byte through until `restore`; connections stay open, and new ones are accepted."""
        self._portal.call(self._open.clear)

    def spoil(self, how: Spoil, *, hang_up: bool = False) -> None:
        """Replace the next piece of bytes from the target, on any connection, by `how(piece)`.

        A piece has at most 16 KiB; later pieces are not replaced. With `hang_up`, the client is
        sent the result and nothing more, and is disconnected.
        """
        self._spoil, self._hangs_up = how, hang_up

    def close(self) -> None:
        """Reset every connection and stop the link's thread."""
        self.refuse()
        self._thread.close()

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The loop closes what was aborted in its next turns.
        await asyncio.sleep(0.01)

    async def _restore(self) -> None:
        self._open.set()
        if self._server is None or not self._server.is_serving():
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        self._begin(self._forward(reader, far_writer, "up"))
        self._begin(self._forward(far_reader, writer, "down"))

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = self._begin(self._send(queue, writer))
        clock = asyncio.get_running_loop().time
        free = 0.0
        arrives = clock() + (self.quality.round_trip * 1.5 if way == "up" else 0.0)
        try:
            while data := await reader.read(_CHUNK):
                now = clock()
                if way == "up":
                    self.up += len(data)
                else:
                    self.down += len(data)
                if self.quality.bandwidth:
                    free = max(now, free) + 8 * len(data) / self.quality.bandwidth
                arrives = max(arrives, max(now, free) + self._delay(len(data)))
                if way == "down" and (spoil := self._spoil) is not None:
                    data, self._spoil = spoil(data), None
                    if self._hangs_up:
                        queue.put_nowait((arrives, data))
                        break
                queue.put_nowait((arrives, data))
            queue.put_nowait((arrives, b""))
            await sending
        except OSError:
            # One side was reset, so the other one is.
            sending.cancel()
            writer.transport.abort()
        finally:
            self._writers.discard(writer)

    async def _send(
        self, queue: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                at, data = await queue.get()
                await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
                await self._open.wait()
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            writer.transport.abort()

    def _delay(self, size: int) -> float:
        """One-way delay, with retransmission of lost packets."""
        quality = self.quality
        delay = quality.round_trip / 2
        packets = -(-size // _PACKET)
        if any(self._rng.random() < quality.loss for _ in range(packets)):
            delay += max(_LEAST_RTO, 2 * quality.round_trip)
        return delay
