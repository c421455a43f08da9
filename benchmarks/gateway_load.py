"""What a gateway adds to a consult, under load: `python -m benchmarks.gateway_load`.

Open loop: consults leave on schedule, whether or not the earlier ones were answered, over many
sessions; latency counts from the moment a consult was due. A scripted engine over real HTTP
answers at once, so that all the time is the gateway's; the same consults straight to the engine
are the baseline, in alternating blocks. Engine, gateway and load are three processes on
127.0.0.1. Each session checks that it gets its own answers. Prints Markdown.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
import msgspec
import numpy as np

from benchmarks.processes import Server, peak
from benchmarks.shared import WireSession, serving, show
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.doubles.scripted_engine import reply_to
from tests.server_process import free_port, server_process

PROMPT, NEW, MOST_IDS = 200, 16, 1000
HEAD = (
    *("sessions", "offered asks/s", "direct p50, ms", "p99", "gateway p50, ms", "p99"),
    *("added p50", "added p99", "wrong", "late", "MB a session", "load's own CPU"),
)


class Load(msgspec.Struct):
    """Latencies, seconds, and what went wrong."""

    seconds: list[float] = []
    wrong: int = 0
    late: int = 0

    @property
    def percentiles(self) -> tuple[float, float]:
        """p50 and p99, ms."""
        p50, p99 = np.percentile(self.seconds, (50, 99)) * 1000
        return float(p50), float(p99)


class Session(WireSession):
    """A conversation, over the protocol or straight to the engine."""

    def __init__(self, number: int) -> None:
        super().__init__([number % 250, number // 250, *[7] * PROMPT])
        self.turn, self._grown = asyncio.Lock(), 0

    def grow(self) -> None:
        """What the edge has written since."""
        position = len(self.ledger) if len(self.ledger) < MOST_IDS else PROMPT
        self.put(position, [self._grown % 250] * NEW)
        self._grown += 1

    async def through_gateway(self) -> bool:
        return (await self.consult()).ids == (reply_to(self.ledger.ids),)

    async def direct(self, engine: LlamaServerEngine) -> bool:
        ids = self.ledger.ids
        return (await engine.complete(ids, 1, Sampling())).ids == (reply_to(ids),)


async def block(
    sessions: Sequence[Session],
    rate: float,
    seconds: float,
    ask: Callable[[Session], Awaitable[bool]],
    rng: random.Random,
    load: Load,
) -> None:
    """Poisson arrivals at `rate` for `seconds`, each at a session drawn anew."""

    async def one(session: Session, due: float) -> None:
        async with session.turn:
            session.grow()
            load.wrong += not await ask(session)
        load.seconds.append(time.perf_counter() - due)

    tasks: list[asyncio.Task[None]] = []
    begun = due = time.perf_counter()
    while due - begun < seconds:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(rng.choice(sessions), due)))
    load.late += sum(not task.done() for task in tasks)
    await asyncio.gather(*tasks)


async def measure(
    count: int, rate: float, gateway: Server, engine_url: str, options: argparse.Namespace
) -> list[str]:
    """One row: so many sessions, which ask so often."""
    before, rng = peak(gateway.pid), random.Random(f"{count} {rate}")
    direct, through = Load(), Load()
    engine = LlamaServerEngine(engine_url)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        sessions = [Session(number) for number in range(count)]
        for session in sessions:
            await session.open(http, gateway.url, ByteTokenizer())
            await session.through_gateway()
        each = (peak(gateway.pid) - before) / count
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(options.blocks):
            seconds = options.seconds / options.blocks
            straight = lambda session: session.direct(engine)  # noqa: E731
            await block(sessions, rate, seconds, straight, rng, direct)
            await block(sessions, rate, seconds, Session.through_gateway, rng, through)
        share = (time.process_time() - used) / (time.perf_counter() - begun)
    await engine.close()
    both = *direct.percentiles, *through.percentiles
    added = both[2] - both[0], both[3] - both[1]
    wrong = direct.wrong + through.wrong
    cells = [f"{count}", f"{rate:g}", *(f"{one:.2f}" for one in (*both, *added)), f"{wrong}"]
    return [*cells, f"{through.late}", f"{each:.3f}", f"{share:.0%}"]


def rows(options: argparse.Namespace) -> Iterator[list[str]]:
    """The rate wanted, at every number of sessions; then rates up to the knee."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tests.doubles.scripted_engine", "--port", str(port)]
    cases = [(count, options.rate) for count in options.sessions]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with server_process(command, f"{url}/health", log=log, folder=Path(os.getcwd())):
            for count, rate in [*cases, *((64, rate) for rate in options.knee)]:
                with serving("gateway", "--engine", url) as gateway:
                    yield asyncio.run(measure(count, rate, gateway, url, options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="consults a second")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16, 64, 256, 1000])
    parser.add_argument("--knee", type=float, nargs="*", default=[400, 600, 800, 1000])
    parser.add_argument("--seconds", type=float, default=12.0, help="of each kind, a row")
    parser.add_argument("--blocks", type=int, default=3)
    options = parser.parse_args()
    show(HEAD, rows(options))
    print(f"\n{options.seconds:g} s of each kind a row in {options.blocks} alternating blocks.")


if __name__ == "__main__":
    main()
