"""Blocks of many devices, verified by a gateway's own engine: `python -m benchmarks.verified_load`.

`edgewise gateway --engine FILE.gguf` is a process of its own; each device is a session over its
protocol, which has one block verified after the other. Beside it, by turns and over the same
sessions, the engine writes as many tokens a request as a block has. Tokens a second are of all
devices together, until the last reply; waits are of one request. Prompts are text, the ids of a
block are drawn from them, and what is verified stays, so that each session grows as an answer
does; at the end of its context it goes back to its prompt. Prints Markdown.
"""

import argparse
import asyncio
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec
import numpy as np

from benchmarks.many import said, story
from benchmarks.processes import Meter, Server, peak
from edgewise.edge.named import open_tokenizer
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
from tests.server_process import free_port, server_process
from tests.smollm2_file import INSTALL, smollm2_file

TURNS = 4
"""Half of them verify, half write."""

WAIT = 300_000
"""Milliseconds that a request may take."""

HEAD = (
    *("devices", "block", "verified tokens/s", "written tokens/s", "ratio", "verified, ms"),
    *("p99", "written, ms", "p99", "requests", "other programs"),
)


class Done(msgspec.Struct):
    """Requests of one kind: tokens, seconds that they took together, and the wait of each."""

    tokens: int = 0
    seconds: float = 0.0
    waits: list[float] = []

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def shown(self) -> list[str]:
        return [f"{1000 * float(wait):.0f}" for wait in np.percentile(self.waits, (50, 99))]


class Device:
    """A session: its ids, how many of them the gateway has, and how many requests it made."""

    def __init__(self, prompt: list[int], rng: random.Random, context: int) -> None:
        self._ledger, self._prompt, self._rng = Ledger(prompt), prompt, rng
        self._context, self._sent, self._asks = context, 0, 0

    async def open(self, http: aiohttp.ClientSession, url: str, fingerprint: str) -> None:
        self._socket = await http.ws_connect(url + PATH, compress=0)
        await self._socket.send_bytes(encode(Open(VERSION, fingerprint)))
        frame = from_gateway((await self._socket.receive()).data)
        if not isinstance(frame, Opened) or not frame.verifies:
            sys.exit(f"The gateway opened no session that verifies: {frame}")

    async def ask(self, block: int, *, verify: bool) -> int:
        """Have a block verified or written; its tokens."""
        ledger = self._ledger
        if len(ledger) + block >= self._context:
            ledger.put(len(self._prompt), [])
            self._sent = min(self._sent, len(ledger))
        if verify:
            ledger.put(len(ledger), self._rng.choices(self._prompt, k=block))
        self._asks += 1
        frame = Ask(
            self._asks,
            self._sent,
            ledger.ids[self._sent :],
            ledger.checksum,
            n=0 if verify else block,
            deadline=WAIT,
            verify=block if verify else 0,
        )
        await self._socket.send_bytes(encode(frame))
        self._sent = len(ledger)
        reply = from_gateway((await self._socket.receive()).data)
        if not isinstance(reply, Reply):
            sys.exit(f"The gateway refused a request: {reply}")
        ledger.put(len(ledger), list(reply.ids))
        return len(reply.verified) + len(reply.ids)


async def turn(
    devices: Sequence[Device], block: int, seconds: float, done: Done, *, verify: bool
) -> None:
    """All devices ask, each as soon as it has its reply, for so many seconds."""
    begun = time.perf_counter()

    async def one(device: Device) -> None:
        while (asked := time.perf_counter()) - begun < seconds:
            tokens = await device.ask(block, verify=verify)
            done.tokens += tokens
            done.waits.append(time.perf_counter() - asked)

    await asyncio.gather(*map(one, devices))
    done.seconds += time.perf_counter() - begun


class Row(NamedTuple):
    """One number of devices, and their blocks."""

    devices: int
    block: int


async def measure(row: Row, server: Server, options: argparse.Namespace) -> list[str]:
    """One row, with sessions of its own."""
    tokenizer = open_tokenizer(str(options.model))
    rng = random.Random(f"{row}")
    prompts = (tokenizer.encode(f"{said(rng, options.prompt)} {story(rng)}") for _ in range(row[0]))
    devices = [Device(list(ids), rng, options.context) for ids in prompts]
    verified, written = Done(), Done()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for device in devices:
            await device.open(http, server.url, tokenizer_fingerprint(tokenizer))
        # Everybody's prompt is read before.
        await asyncio.gather(*(device.ask(1, verify=False) for device in devices))
        meter = Meter([server])
        for number in range(TURNS):
            # Verified, written, written, verified.
            verify = number % 4 in (0, 3)
            done = verified if verify else written
            await turn(devices, row.block, options.seconds / TURNS, done, verify=verify)
        others, _ = meter.read()
    cells = [f"{verified.speed:.1f}", f"{written.speed:.1f}"]
    cells += [f"{verified.speed / written.speed:.2f}", *verified.shown, *written.shown]
    requests = f"{len(verified.waits)} and {len(written.waits)}"
    return line([*map(str, row), *cells, requests, f"{others:.0%}"])


@contextmanager
def gateway(options: argparse.Namespace) -> Generator[Server]:
    """A gateway whose engine is the model."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "edgewise", "gateway", "--engine", str(options.model)]
    command += ["--port", str(port), "--ctx", str(options.context)]
    command += ["--threads", str(options.threads), "--slots", str(max(options.devices))]
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        with server_process(command, f"{url}/ready", log=log, folder=Path(name)) as pid:
            yield Server(url, pid)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF; SmolLM2 without it")
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--blocks", type=int, nargs="+", default=[4, 8, 16], help="ids")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a row")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--context", type=int, default=1024, help="tokens of a session")
    parser.add_argument("--prompt", type=int, default=100, help="its tokens, about")
    options = parser.parse_args(arguments)
    path = options.model or smollm2_file() or parser.error(f"SmolLM2: {INSTALL}")
    if not path.is_file():
        parser.error(f"There is no file {path}; give a GGUF.")
    options.model = path.resolve()
    counts = [*options.devices, *options.blocks, options.threads, options.prompt]
    if min(counts) < 1 or not options.seconds > 0:
        parser.error("All numbers must be above 0.")
    if options.context < 2 * options.prompt + max(options.blocks) + 100:
        parser.error("--context must have room for two prompts, a block and 100 tokens.")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    given = shlex.join(sys.argv[1:] if arguments is None else arguments)
    print(f"`python -m benchmarks.verified_load {given}`: {options.model.stem}, ", end="")
    print(f"{options.threads} threads, {os.cpu_count()} cores, {options.seconds:g} s a row.\n")
    print(*line(HEAD, head=True), sep="\n", flush=True)
    with gateway(options) as server:
        for devices in options.devices:
            for block in options.blocks:
                row = asyncio.run(measure(Row(devices, block), server, options))
                print(*row, sep="\n", flush=True)
        print(f"\nThe gateway's peak memory: {peak(server.pid):.0f} MB.")


if __name__ == "__main__":
    # The servers end as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
