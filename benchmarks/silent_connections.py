"""What strangers cost those who ask: `python -m benchmarks.silent_connections`.

`edgewise gateway` (before a scripted engine) and `edgewise serve` as processes with 1,024 open
files. Against each, beside the probes: 1,100 connections that say nothing, 50 that send a body at 1
byte per 50 ms, 20 header floods a second of 64 KiB each; all come back a second after they were
hung up on. A probe is a new connection and a whole exchange: `/health`, or at the gateway a device
that opens a session and has one consult answered. Quiet and attacked seconds take turns, so that
both see the same machine. Prints Markdown.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Coroutine
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import aiohttp
import numpy as np

from benchmarks.pocket_routers import line
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.testing.scripted_engine import ScriptedEngine
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
from tests.listening.processes import Process, server

SILENT, SLOW, FLOODS = 1100, 50, 20
PROBE_SECONDS, PAUSE = 5.0, 0.02

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
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(begun)
                gone = asyncio.create_task(reader.read())
                while not gone.done():
                    await asyncio.wait([gone], timeout=pause)
                    writer.write(then)
                    await writer.drain()
                await gone
            finally:
                writer.transport.abort()
        await asyncio.sleep(1.0)


async def attack(port: int, on: Event) -> None:
    """All strangers, while `on` is set."""
    while True:
        while not on.is_set():
            await asyncio.sleep(0.01)
        work: list[Coroutine[Any, Any, None]] = []
        work += [stranger(port, b"", b"", 60) for _ in range(SILENT)]
        work += [stranger(port, BODY, b"x", 0.05) for _ in range(SLOW)]
        work += [stranger(port, HEADERS, b"", 60) for _ in range(FLOODS)]
        tasks = [asyncio.create_task(one) for one in work]
        while on.is_set():
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def attacker(port: int, on: Event) -> None:
    """A process of its own, so that the probes wait for the server alone."""
    asyncio.run(attack(port, on))


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


def measured(process: Process, probes: dict[str, Probe], rounds: int, seconds: float) -> list[str]:
    """A line of the table for each kind of probe."""
    context = multiprocessing.get_context("spawn")
    on = context.Event()
    against = context.Process(target=attacker, args=(process.port, on), daemon=True)
    against.start()
    seen = {(name, bad): Seen([], []) for name in probes for bad in (False, True)}
    log = {False: 0, True: 0}
    try:
        for _ in range(rounds):
            for bad in (False, True):
                before = process.told.stat().st_size
                (on.set if bad else on.clear)()
                time.sleep(3.0)  # all are there, or gone
                for name, probe in probes.items():
                    asyncio.run(probed(probe, process.port, seconds, seen[name, bad]))
                log[bad] += process.told.stat().st_size - before
    finally:
        against.kill()
        against.join()
    return [row(name, seen[name, False], seen[name, True], log[True]) for name in probes]


def row(name: str, quiet: Seen, attacked: Seen, log: int) -> str:
    """Latencies in ms."""
    cells = [name]
    for one in (quiet, attacked):
        p50, p99 = (1000 * np.quantile(one.seconds, q) for q in (0.5, 0.99))
        cells += [f"{len(one.seconds)}", f"{len(one.lost)}", f"{p50:.1f}", f"{p99:.1f}"]
    ratio = np.quantile(attacked.seconds, 0.99) / np.quantile(quiet.seconds, 0.99)
    for reason in sorted({*quiet.lost, *attacked.lost}):
        print(f"lost: {reason}")
    return line([*cells, f"{ratio:.2f}", f"{log / 1024:.0f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0, help="of probes, a turn")
    asked = parser.parse_args()
    head = ["probe", "quiet: n", "lost", "p50, ms", "p99", "attacked: n", "lost", "p50", "p99"]
    head += ["p99 / quiet p99", "log, KiB"]
    rows = [line(head), line(["---"] * len(head))]
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
