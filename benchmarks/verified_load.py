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
import random
import signal
import time
from collections.abc import Iterator, Sequence

import aiohttp
import msgspec
import numpy as np

from benchmarks.processes import Meter, Server, peak
from benchmarks.shared import (
    WireSession,
    above_zero,
    cores,
    sentences,
    serving,
    show,
    story,
    weights,
)
from edgewise.edge.named import open_tokenizer

VERIFIES = (True, False, False, True)
"""Whether a turn verifies or writes."""

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


class Device(WireSession):
    """A session whose answer grows by blocks."""

    def __init__(self, prompt: Sequence[int], rng: random.Random, context: int) -> None:
        super().__init__(prompt)
        self._prompt, self._rng, self._context = prompt, rng, context

    async def ask(self, block: int, *, verify: bool) -> int:
        """Have a block verified or written; its tokens."""
        if len(self.ledger) + block >= self._context:
            self.put(len(self._prompt), [])
        if verify:
            self.put(len(self.ledger), self._rng.choices(self._prompt, k=block))
        reply = await self.consult(0 if verify else block, block if verify else 0)
        self.put(len(self.ledger), reply.ids)
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


async def measure(count: int, block: int, server: Server, options: argparse.Namespace) -> list[str]:
    """One row, with sessions of its own."""
    tokenizer, rng = open_tokenizer(str(options.model)), random.Random(f"{count} {block}")
    texts = (f"{sentences(rng, options.prompt)} {story(rng)}" for _ in range(count))
    devices = [Device(tokenizer.encode(text), rng, options.context) for text in texts]
    both = {True: Done(), False: Done()}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for device in devices:
            assert (await device.open(http, server.url, tokenizer)).verifies
        # Everybody's prompt is read before.
        await asyncio.gather(*(device.ask(1, verify=False) for device in devices))
        meter = Meter([server])
        for verify in VERIFIES:
            seconds = options.seconds / len(VERIFIES)
            await turn(devices, block, seconds, both[verify], verify=verify)
    verified, written = both[True], both[False]
    cells = [f"{count}", f"{block}", f"{verified.speed:.1f}", f"{written.speed:.1f}"]
    cells += [f"{verified.speed / written.speed:.2f}", *verified.shown, *written.shown]
    requests = f"{len(verified.waits)} and {len(written.waits)}"
    return [*cells, requests, f"{meter.read()[0]:.0%}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a GGUF; SmolLM2 without it")
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--blocks", type=int, nargs="+", default=[4, 8, 16], help="ids")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a row")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--context", type=int, default=1024, help="tokens of a session")
    parser.add_argument("--prompt", type=int, default=100, help="its tokens, about")
    options = parser.parse_args(arguments)
    options.model = weights(options.model, parser)
    above_zero(parser, options, "devices", "blocks", "seconds", "threads", "prompt")
    if options.context < 2 * options.prompt + max(options.blocks) + 100:
        parser.error("--context must have room for two prompts, a block and 100 tokens.")
    words = ["gateway", "--engine", options.model, "--ctx", options.context]
    words += ["--threads", options.threads, "--slots", max(options.devices)]
    with serving(*words) as server:

        def rows() -> Iterator[list[str]]:
            for count in options.devices:
                for block in options.blocks:
                    yield asyncio.run(measure(count, block, server, options))

        show(HEAD, rows())
        print(f"\n{options.model.stem}, {options.threads} threads, {options.seconds:g} s a row.")
        print(f"The gateway's peak memory: {peak(server.pid):.0f} MB.")


if __name__ == "__main__":
    # The servers end as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
