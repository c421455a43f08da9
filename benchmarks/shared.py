"""What several scripts do alike: cells of figures, GGUFs, servers and their meters, sessions."""

import argparse
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import aiohttp
import httpx2

from benchmarks.processes import Server
from edgewise.edge.base import Tokenizer
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


def spread(values: Sequence[float], digits: int, scale: float = 1) -> str:
    """The median, with the lowest and the highest."""
    middle, low, high = (scale * one for one in (median(values), min(values), max(values)))
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def ends(value: float, interval: tuple[float, float] | None, digits: int = 0) -> str:
    """Percent, with the ends of an interval."""
    low, high = (f"{100 * end:.{digits}f}" for end in interval or (value, value))
    return f"{100 * value:.{digits}f} ({low} to {high})"


def show(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown, each row when it is there."""
    print(*line(head, head=True), sep="\n", flush=True)
    for cells in rows:
        print(*line(cells), sep="\n", flush=True)


def weights(named: str | Path | None, parser: argparse.ArgumentParser) -> Path:
    """The GGUF that is named, SmolLM2's without a name; ends the program where it is missing."""
    if named is None or str(named) == "smollm2":
        return smollm2_file() or parser.error(f"The weights of SmolLM2 are missing: {INSTALL}")
    if not Path(named).is_file():
        parser.error(f"There is no file {named}; give a GGUF.")
    return Path(named).resolve()


def above_zero(parser: argparse.ArgumentParser, options: argparse.Namespace, *names: str) -> None:
    """Ends the program where an option's number, or one of its numbers, is not above 0."""
    for name in names:
        given = getattr(options, name)
        if min(given if isinstance(given, list) else [given]) <= 0:
            parser.error(f"--{name} must be above 0.")


def until(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait for it; False where it does not come."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def metric(url: str, name: str) -> float:
    """The sum of an engine's metric over its lines, whatever stands before its name."""
    text = httpx2.get(f"{url}/metrics", timeout=30, trust_env=False).text
    found = re.findall(rf"^\w+:{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


@contextmanager
def serving(*words: object, ready: str = "/ready") -> Generator[Server]:
    """`edgewise` with these words, as a process on a port of its own."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "edgewise", *map(str, words), "--port", str(port)]
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        with server_process(command, url + ready, log=log, folder=Path(name)) as pid:
            yield Server(url, pid)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


class WireSession:
    """A device's session over a bare WebSocket: its ids, and how many the gateway has."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ledger, self.sent, self._asks = Ledger(ids), 0, 0

    async def open(self, http: aiohttp.ClientSession, url: str, tokenizer: Tokenizer) -> Opened:
        self._socket = await http.ws_connect(url + PATH, compress=0)
        await self._socket.send_bytes(encode(Open(VERSION, tokenizer_fingerprint(tokenizer))))
        frame = from_gateway((await self._socket.receive()).data)
        return frame if isinstance(frame, Opened) else sys.exit(f"No session was opened: {frame}")

    async def consult(self, n: int = 1, verify: int = 0) -> Reply:
        """About all of its ids."""
        self._asks += 1
        new, check = self.ledger.ids[self.sent :], self.ledger.checksum
        frame = Ask(self._asks, self.sent, new, check, n=n, deadline=300_000, verify=verify)
        await self._socket.send_bytes(encode(frame))
        self.sent = len(self.ledger)
        reply = from_gateway((await self._socket.receive()).data)
        return reply if isinstance(reply, Reply) else sys.exit(f"It was refused: {reply}")

    def put(self, position: int, ids: Sequence[int]) -> None:
        """What stands from `position` on."""
        self.ledger.put(position, ids)
        self.sent = min(self.sent, position)


NOUNS = (
    *("sailor", "baker", "doctor", "farmer", "painter", "weaver", "fox", "heron", "raven"),
    *("horse", "river", "forest", "castle", "island", "village", "garden", "bridge", "storm"),
)


def sentences(rng: random.Random, tokens: int) -> str:
    """Of about so many tokens."""
    named = (rng.sample(NOUNS, 3) for _ in range(tokens // 10))
    return " ".join(f"The {one} met the {two} beside the {three}." for one, two, three in named)


def story(rng: random.Random) -> str:
    """A prompt for a long answer."""
    one, two, three = rng.sample(NOUNS, 3)
    return (
        f"{one.title()}, {two}, {three}: write a very long story about these, in twenty chapters. "
        "Tell every detail, and begin with the first chapter."
    )
