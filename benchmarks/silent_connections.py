"""What strangers cost those who ask: `python -m benchmarks.silent_connections`.

`edgewise gateway` (before a scripted engine) and `edgewise serve` as processes with 1,024 open
files. Beside the probes: nobody; 1,100 connections that say nothing; or these, 50 that send a body
at 1 byte per 50 ms and 20 that send 64 KiB of headers. All come back a second or so after they were
hung up on. A probe is a new connection and a whole exchange: `/health`, or at the gateway a device
that opens a session and has one consult answered. The three take turns, so that all see the same
machine. Prints Markdown.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import time
from collections.abc import Awaitable, Callable
from multiprocessing.synchronize import Event
from typing import NamedTuple

import aiohttp
import numpy as np

from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.wire.protocol import (
    PATH,
    VERSION,
    Ask,
    Ledger,
    Open,
    Opened,
    Reply,
    encode,
    from_gateway,
    tokenizer_fingerprint,
)
from edgewise_lab.tables import line
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.processes import ServerProcess, server

SILENT, SLOW, FLOODS = 1100, 50, 20
PROBE_SECONDS, PAUSE = 5.0, 0.02

QUIET, SILENCE, ALL = BESIDE = "nobody", "1,100 silent", "and slow bodies, header floods"

FINGERPRINT = tokenizer_fingerprint(ByteTokenizer())
BODY = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY += b"Content-Length: 100000\r\n\r\n"
HEADERS = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Header: 0123456789abcdef\r\n" * 2340

Probe = Callable[[int], Awaitable[None]]


async def health(port: int) -> None:
    """A look at `/health`."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/health") as answer,
    ):
        assert answer.status == 200


async def device(port: int) -> None:
    """A session and a consult."""
    ledger = Ledger()
    ledger.put(0, [1, 2, 3])
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"http://127.0.0.1:{port}{PATH}") as socket,
    ):
        await socket.send_bytes(encode(Open(VERSION, FINGERPRINT)))
        assert isinstance(from_gateway(await socket.receive_bytes()), Opened)
        await socket.send_bytes(encode(Ask(1, 0, [1, 2, 3], ledger.check)))
        assert isinstance(from_gateway(await socket.receive_bytes()), Reply)


async def stranger(port: int, begun: bytes, then: bytes, pause: float) -> None:
    """One connection after another: `begun`, then `then` every `pause` seconds."""
    await asyncio.sleep(2 * random.random())
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(begun)
                gone = asyncio.create_task(reader.read())
                gone.add_done_callback(lambda task: task.cancelled() or task.exception())
                while not gone.done():
                    await asyncio.wait([gone], timeout=pause)
                    writer.write(then)
                    await writer.drain()
                await gone
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.5 + random.random())


async def attack(port: int, silent: Event, others: Event) -> None:
    """The strangers whose turn it is."""
    while True:
        while not silent.is_set():
            await asyncio.sleep(0.01)
        work = [stranger(port, b"", b"", 60) for _ in range(SILENT)]
        if others.is_set():
            work += [stranger(port, BODY, b"x", 0.05) for _ in range(SLOW)]
            work += [stranger(port, HEADERS, b"", 60) for _ in range(FLOODS)]
        tasks = [asyncio.create_task(one) for one in work]
        while silent.is_set():
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def attacker(port: int, silent: Event, others: Event) -> None:
    """A process of its own, so that the probes wait for the server alone."""
    asyncio.run(attack(port, silent, others))


class Seen(NamedTuple):
    """Seconds of the probes that were answered, and how many were not."""

    seconds: list[float]
    lost: list[str]


async def probed(probe: Probe, port: int, seconds: float, seen: Seen) -> None:
    """One after another."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await probe(port)
            seen.seconds.append(time.perf_counter() - begun)
        except (TimeoutError, OSError, aiohttp.ClientError, AssertionError, TypeError) as error:
            seen.lost.append(repr(error))
        await asyncio.sleep(PAUSE)


def measured(
    process: ServerProcess, probes: dict[str, Probe], rounds: int, seconds: float
) -> list[str]:
    """A line of the table for each kind of probe beside each kind of stranger."""
    context = multiprocessing.get_context("spawn")
    silent, others = context.Event(), context.Event()
    against = context.Process(target=attacker, args=(process.port, silent, others), daemon=True)
    against.start()
    seen = {(name, beside): Seen([], []) for name in probes for beside in BESIDE}
    log = dict.fromkeys(BESIDE, 0)
    try:
        for _ in range(rounds):
            for beside in BESIDE:
                before = len(process.told())
                (others.set if beside == ALL else others.clear)()
                (silent.clear if beside == QUIET else silent.set)()
                time.sleep(3.0)  # all are there
                for name, probe in probes.items():
                    asyncio.run(probed(probe, process.port, seconds, seen[name, beside]))
                log[beside] += len(process.told()) - before
                silent.clear()
                time.sleep(2.0)  # and gone
    finally:
        against.kill()
        against.join()
    rows: list[str] = []
    for name in probes:
        for beside in BESIDE:
            rows += row(name, beside, seen[name, beside], seen[name, QUIET], log[beside])
    return rows


def row(name: str, beside: str, found: Seen, quiet: Seen, log: int) -> list[str]:
    """Latencies in ms."""
    p50, p99 = (1000 * np.quantile(found.seconds or [np.nan], q) for q in (0.5, 0.99))
    ratio = p99 / 1000 / np.quantile(quiet.seconds or [np.nan], 0.99)
    for reason in sorted(set(found.lost)):
        print(f"lost: {reason}")
    figures = [f"{p50:.1f}", f"{p99:.1f}", f"{ratio:.2f}", f"{log / 1024:.0f}"]
    return line([name, beside, f"{len(found.seconds)}", f"{len(found.lost)}", *figures])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0, help="of probes, a turn")
    asked = parser.parse_args()
    head = ["probe", "beside", "n", "lost", "p50, ms", "p99, ms", "p99 / quiet", "log, KiB"]
    rows = line(head, head=True)
    engine = ScriptedEngine()
    try:
        with server("gateway", "--engine", engine.url, files=1024) as gateway:
            probes: dict[str, Probe] = {"gateway, /health": health, "gateway, a consult": device}
            rows += measured(gateway, probes, asked.rounds, asked.seconds)
        with server("serve", "--threads", "1", files=1024) as served:
            rows += measured(served, {"serve, /health": health}, asked.rounds, asked.seconds)
    finally:
        engine.close()
    print("\n".join(rows))


if __name__ == "__main__":
    main()
