"""What a gateway adds to a consult, under load: `python -m benchmarks.gateway_load`.

Open loop: consults leave on schedule, whether or not the earlier ones were answered, over many
sessions; latency counts from the moment a consult was due. A scripted engine over real HTTP
answers at once, so that all the time is the gateway's; the same consults straight to the engine
are the baseline, in alternating blocks. Engine, gateway and load are three processes on
127.0.0.1. Each session checks that it gets its own answers. Prints Markdown.
"""

import argparse
import asyncio
import random
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np

from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.sampling import Sampling
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
from tests.doubles.scripted_engine import reply_to
from tests.server_process import free_port

PROMPT, NEW = 200, 16
MOST_IDS = 1000


class Load(NamedTuple):
    """A block's latencies, seconds, and what went wrong in it."""

    seconds: list[float]
    wrong: int
    late: int


class Session:
    """A device's conversation over a bare WebSocket, or straight to the engine."""

    def __init__(self, number: int) -> None:
        self.ledger = Ledger()
        self.ledger.put(0, [number % 250, number // 250, *[7] * PROMPT])
        self.sent = 0
        self.asks = 0
        self.turn = asyncio.Lock()
        self.socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self, http: aiohttp.ClientSession, url: str) -> None:
        self.socket = await http.ws_connect(url + PATH, compress=0)
        open_frame = Open(VERSION, tokenizer_fingerprint(ByteTokenizer()))
        await self.socket.send_bytes(encode(open_frame))
        frame = from_gateway((await self.socket.receive()).data)
        assert isinstance(frame, Opened), frame
        await self.through_gateway()

    def grow(self) -> None:
        """What the edge has written since."""
        ids = self.ledger.ids
        position = len(ids) if len(ids) < MOST_IDS else PROMPT
        self.ledger.put(position, [self.asks % 250] * NEW)
        self.sent = min(self.sent, position)
        self.asks += 1

    async def through_gateway(self) -> bool:
        assert self.socket is not None
        ids = self.ledger.ids
        ask = Ask(self.asks, self.sent, ids[self.sent :], self.ledger.checksum)
        await self.socket.send_bytes(encode(ask))
        self.sent = len(ids)
        frame = from_gateway((await self.socket.receive()).data)
        return isinstance(frame, Reply) and frame.ids == (reply_to(ids),)

    async def direct(self, engine: LlamaServerEngine) -> bool:
        completion = await engine.complete(self.ledger.ids, 1, Sampling())
        return completion.ids == (reply_to(self.ledger.ids),)


async def block(
    sessions: Sequence[Session],
    rate: float,
    seconds: float,
    ask: Callable[[Session], Awaitable[bool]],
    rng: random.Random,
) -> Load:
    """Poisson arrivals at `rate` for `seconds`, each at a session drawn anew."""
    found = Load([], 0, 0)
    wrong = 0

    async def one(session: Session, due: float) -> None:
        nonlocal wrong
        async with session.turn:
            session.grow()
            wrong += not await ask(session)
        found.seconds.append(time.perf_counter() - due)

    tasks: list[asyncio.Task[None]] = []
    begun = time.perf_counter()
    due = begun
    while due - begun < seconds:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(rng.choice(sessions), due)))
    late = sum(not task.done() for task in tasks)
    await asyncio.gather(*tasks)
    return Load(found.seconds, wrong, late)


@contextmanager
def process(*arguments: object) -> Iterator["subprocess.Popen[bytes]"]:
    """A Python module as a process of its own."""
    command = [sys.executable, "-m", *map(str, arguments)]
    quiet = subprocess.DEVNULL
    started = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


async def until_ready(url: str, path: str) -> None:
    async with aiohttp.ClientSession() as http:
        for _ in range(600):
            try:
                async with http.get(url + path) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise TimeoutError(url)


def memory(pid: int) -> float:
    """Resident, MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def shown(seconds: Sequence[float]) -> list[str]:
    p50, p99 = np.percentile(seconds, (50, 99)) * 1000
    return [f"{p50:.2f}", f"{p99:.2f}"]


async def run(options: argparse.Namespace) -> list[str]:
    engine_port, gateway_port = free_port(), free_port()
    engine_url, url = (f"http://127.0.0.1:{port}" for port in (engine_port, gateway_port))
    rng = random.Random(0)
    lines = line(
        ["sessions", "offered asks/s", "direct p50, ms", "p99", "gateway p50, ms", "p99",
         "added p50", "added p99", "wrong", "late", "MB a session", "load's own CPU"],
        head=True,
    )  # fmt: skip
    with process("tests.doubles.scripted_engine", "--port", engine_port):
        await until_ready(engine_url, "/health")
        for count, rate in cases(options):
            arguments = ("edgewise", "gateway", "--engine", engine_url, "--port", gateway_port)
            with process(*arguments) as gateway:
                await until_ready(url, "/ready")
                row = Row(count, rate, url, engine_url, gateway.pid)
                lines += await measure(row, options, rng)
    return lines


def cases(options: argparse.Namespace) -> list[tuple[int, float]]:
    """The rate wanted, at every number of sessions; then rates up to the knee."""
    same = [(count, options.rate) for count in options.sessions]
    return same + [(64, rate) for rate in options.knee]


class Row(NamedTuple):
    """A line of the table: how many sessions, how often they ask, and of whom."""

    count: int
    rate: float
    url: str
    engine_url: str
    pid: int


async def measure(row: Row, options: argparse.Namespace, rng: random.Random) -> list[str]:
    before = memory(row.pid)
    direct, through = Load([], 0, 0), Load([], 0, 0)
    engine = LlamaServerEngine(row.engine_url)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        sessions = [Session(number) for number in range(row.count)]
        for session in sessions:
            await session.open(http, row.url)
        each = (memory(row.pid) - before) / row.count
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(options.blocks):
            for total, ask in (
                (direct, lambda session: session.direct(engine)),
                (through, Session.through_gateway),
            ):
                found = await block(sessions, row.rate, options.seconds / options.blocks, ask, rng)
                total.seconds.extend(found.seconds)
                totals = Load(total.seconds, total.wrong + found.wrong, total.late + found.late)
                if total is direct:
                    direct = totals
                else:
                    through = totals
        share = (time.process_time() - used) / (time.perf_counter() - begun)
    await engine.close()
    added = [
        f"{float(a) - float(b):.2f}"
        for a, b in zip(shown(through.seconds), shown(direct.seconds), strict=True)
    ]
    return line(
        [str(row.count), f"{row.rate:g}", *shown(direct.seconds), *shown(through.seconds), *added,
         str(direct.wrong + through.wrong), str(through.late), f"{each:.3f}", f"{share:.0%}"]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="consults a second")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16, 64, 256, 1000])
    parser.add_argument("--knee", type=float, nargs="*", default=[400, 600, 800, 1000])
    parser.add_argument("--seconds", type=float, default=12.0, help="of each kind, a row")
    parser.add_argument("--blocks", type=int, default=3)
    options = parser.parse_args()
    print("\n".join(asyncio.run(run(options))))
    print(f"\n{options.seconds:g} s of each kind a row in {options.blocks} alternating blocks.")


if __name__ == "__main__":
    main()
