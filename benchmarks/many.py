"""Answers at once: `edgewise serve` beside the real llama-server. `python -m benchmarks.many`.

Both servers have the same GGUF, threads, cores and room, and are asked by one client: streamed
chat, greedy. They take turns, in another order each round; the one that is not asked is idle. A
round in which other programs took more than a fifth of the cores is thrown away and asked again.
Prompts are new in each round: from their first word on (differ), or behind a beginning that all
share and both servers have read before (shared). Tokens a second are of all answers of a round,
from its first request to its last token. Then a fifth request comes while four long answers are
written. Prints Markdown.
"""

import argparse
import asyncio
import os
import random
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Generic, NamedTuple, TypeVar

import aiohttp
import msgspec

from edgewise_lab.tables import line
from tests.llama_server_process import RECOMMENDED, llama_server
from tests.server_process import free_port, server_process
from tests.smollm2_file import INSTALL, smollm2_file

TRIES = 5
"""Times the rounds wanted."""

OTHERS, STARTED = 4, 16
"""Long answers beside a late request, and the tokens that each has when it comes."""

LONG = 256
"""Most tokens of each."""

KINDS = ("differ", "shared")
NOUNS = (
    *("sailor", "baker", "doctor", "farmer", "painter", "weaver", "fox", "heron", "raven"),
    *("horse", "river", "forest", "castle", "island", "village", "garden", "bridge", "storm"),
)
R = TypeVar("R")
TICKS = os.sysconf("SC_CLK_TCK")
_WRITES = re.compile(rb'"content": ?"(?!")')
_USAGE = re.compile(rb'"prompt_tokens": ?(\d+)'), re.compile(rb'"completion_tokens": ?(\d+)')


class Server(NamedTuple):
    """A running server; its process may have others below it."""

    name: str
    url: str
    pid: int


class Answer(msgspec.Struct):
    """When it was asked for, when each text came (seconds of the clock), and its tokens."""

    asked: float
    stamps: list[float] = []
    prompt: int = 0
    tokens: int = 0

    @property
    def first(self) -> float:
        """Seconds to the first text."""
        return self.stamps[0] - self.asked


class Round(NamedTuple):
    """Tokens a second of one server, and its answers that ended before they were as long."""

    speed: float
    short: int


class Late(NamedTuple):
    """A late request: seconds to its first text, and the longest pause of the others meanwhile.

    `usual` is the median pause of the others before it came; `beside` whether all were still being
    written when it had its first text.
    """

    first: float
    pause: float
    usual: float
    prompt: int
    beside: bool


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    below: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (parent := fields(int(folder.name))) is not None:
            below.setdefault(int(parent[1]), []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += below.get(one, [])
    return found


def fields(pid: int) -> list[str] | None:
    """`/proc/PID/stat` behind the name; None where the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def processor(pids: Sequence[int]) -> float:
    """Processor seconds of these processes and of those below them that have ended."""
    read = (fields(pid) or ["0"] * 15 for pid in pids)
    return sum(sum(map(int, stat[11:15])) for stat in read) / TICKS


def busy() -> float:
    """Processor seconds of the whole machine; what its host took away is busy, too."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + sum(rest)) / TICKS


def peak(pid: int) -> float:
    """Peak resident memory of a process and those below it, MB."""
    found = 0
    for one in tree(pid):
        held = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{one}/status").read_text())
        found += int(held[1]) if held else 0
    return found / 1024


class Meter:
    """Who has the cores, from here on."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._ours = [tree(server.pid) for server in servers]
        self._begun, self._busy = time.perf_counter(), busy()
        self._own, self._each = processor([os.getpid()]), [processor(ids) for ids in self._ours]

    def read(self) -> tuple[float, float, list[float]]:
        """Cores of other programs (a share of all), of this one and of each server (in cores)."""
        seconds = time.perf_counter() - self._begun
        own = processor([os.getpid()]) - self._own
        each = [processor(ids) - was for ids, was in zip(self._ours, self._each, strict=True)]
        others = busy() - self._busy - own - sum(each)
        cores = os.cpu_count() or 1
        return others / seconds / cores, own / seconds, [used / seconds for used in each]


def prompts(kind: str, count: int, number: int) -> list[str]:
    """Of round `number`."""
    rng = random.Random(f"{kind} {number}")
    beginning = f"{said(random.Random(kind), 200)}\n\n" if kind == "shared" else ""
    return [beginning + story(rng) for _ in range(count)]


def story(rng: random.Random) -> str:
    """A prompt for a long answer."""
    one, two, three = rng.sample(NOUNS, 3)
    return (
        f"{one.title()}, {two}, {three}: write a very long story about these, in twenty chapters. "
        "Tell every detail, and begin with the first chapter."
    )


def said(rng: random.Random, tokens: int) -> str:
    """Sentences of about so many tokens."""
    named = (rng.sample(NOUNS, 3) for _ in range(tokens // 10))
    return " ".join(f"The {one} met the {two} beside the {three}." for one, two, three in named)


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    prompt: str,
    tokens: int,
    came: Callable[[Answer], None] = lambda answer: None,
) -> Answer:
    """One answer, read as it comes. `came` is told of each text."""
    body = {
        "model": "edgewise",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer, end = Answer(time.perf_counter()), b""
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            sys.exit(f"{url} answered {response.status}: {(await response.text())[:300]}")
        async for chunk in response.content.iter_any():
            if _WRITES.search(chunk):
                answer.stamps.append(time.perf_counter())
                came(answer)
            end = (end + chunk)[-4000:]
    counts = [found[-1] if (found := part.findall(end)) else None for part in _USAGE]
    if not answer.stamps or None in counts:
        sys.exit(f"{url} ended an answer without text or usage: {end[-300:].decode()}")
    answer.prompt, answer.tokens = (int(count or 0) for count in counts)
    return answer


async def together(http: aiohttp.ClientSession, url: str, texts: list[str], tokens: int) -> Round:
    """Answers at once."""
    begun = time.perf_counter()
    answers = await asyncio.gather(*(ask(http, url, text, tokens) for text in texts))
    end = max(answer.stamps[-1] for answer in answers)
    written = sum(answer.tokens for answer in answers)
    short = sum(answer.tokens < tokens for answer in answers)
    return Round(written / (end - begun), short)


async def late(http: aiohttp.ClientSession, url: str, texts: list[str], prompt: str) -> Late:
    """A request of `prompt` while answers to `texts` are written."""
    started, waiting = asyncio.Event(), set(range(len(texts)))

    def told(number: int) -> Callable[[Answer], None]:
        def came(answer: Answer) -> None:
            if len(answer.stamps) >= STARTED:
                waiting.discard(number)
                if not waiting:
                    started.set()

        return came

    before = [
        asyncio.create_task(ask(http, url, text, LONG, told(number)))
        for number, text in enumerate(texts)
    ]
    everyone = asyncio.gather(*before)
    begins = asyncio.create_task(started.wait())
    await asyncio.wait([begins, everyone], return_when=asyncio.FIRST_COMPLETED)
    begins.cancel()
    fifth = await ask(http, url, prompt, STARTED)
    others = await everyone
    return seen(fifth, [answer.stamps for answer in others])


def seen(fifth: Answer, others: Sequence[Sequence[float]]) -> Late:
    """What the late request waited, and what the answers beside it did."""
    came = fifth.stamps[0]
    pairs = [pair for stamps in others for pair in pairwise(stamps)]
    usual = [after - before for before, after in pairs if after <= fifth.asked]
    meanwhile = [after - before for before, after in pairs if after > fifth.asked and before < came]
    beside = all(stamps[-1] >= came for stamps in others)
    pause, usually = max(meanwhile, default=0.0), median(usual) if usual else 0.0
    return Late(fifth.first, pause, usually, fifth.prompt, beside)


class Rounds(NamedTuple, Generic[R]):
    """What was kept, ours and theirs of each round, and how many rounds were asked."""

    kept: list[tuple[R, R]]
    tried: int


async def alternating(
    servers: Sequence[Server], rounds: int, disturbed: float, once: Callable[[str, int], Any]
) -> Rounds[Any]:
    """`once` of a URL and a round's number, by both in turn; the first round is not counted."""
    kept: list[tuple[Any, Any]] = []
    for server in servers:
        await once(server.url, -1)
    tried = 0
    while len(kept) < rounds and tried < TRIES * rounds:
        found: list[Any] = [None, None]
        meter = Meter(servers)
        for which in (0, 1) if tried % 2 else (1, 0):
            found[which] = await once(servers[which].url, tried)
        if meter.read()[0] <= disturbed:
            kept.append((found[0], found[1]))
        else:
            await asyncio.sleep(1)
        tried += 1
    return Rounds(kept, tried)


def speeds_row(name: str, count: int, kind: str, found: Rounds[Round]) -> list[str]:
    """Of one number of answers: the best and the median of each, and their ratios."""
    cells = [name, str(count), kind]
    tail = f"{len(found.kept)}/{found.tried}"
    if not found.kept:
        return line([*cells, *["-"] * 7, tail])
    sides = [[one.speed for one in side] for side in zip(*found.kept, strict=True)]
    ratios = [ours / theirs for ours, theirs in zip(*sides, strict=True)]
    best = [max(side) for side in sides]
    cells += [f"{value:.1f}" for value in best] + [f"{best[0] / best[1]:.3f}"]
    cells += [f"{median(side):.1f}" for side in sides]
    cells += [f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"]
    short = [str(sum(one.short for one in side)) for side in zip(*found.kept, strict=True)]
    return line([*cells, " and ".join(short), tail])


SPEEDS = (
    *("model", "answers", "prompts", "ours, tokens/s", "llama-server", "ratio of the best"),
    *("ours, median", "llama-server", "ratio of a round", "ended early", "rounds kept"),
)


def late_row(name: str, kind: str, found: Rounds[Late]) -> list[str]:
    """Of one prompt: medians with the lowest and the highest, ms, of ours and theirs."""
    kept = [pair for pair in found.kept if all(one.beside for one in pair)]
    tail = f"{len(kept)}/{found.tried}"
    if not kept:
        return line([name, kind, *["-"] * 7, tail])
    cells = [name, kind, str(kept[0][0].prompt)]
    for part in ("first", "pause", "usual"):
        for side in zip(*kept, strict=True):
            values = [getattr(one, part) * 1000 for one in side]
            cells.append(f"{median(values):.0f} ({min(values):.0f} to {max(values):.0f})")
    return line([*cells, tail])


LATE = (
    *("model", "prompt", "its tokens", "ours, ms to the first token", "llama-server"),
    *("ours, longest pause of the four, ms", "llama-server", "ours, usual pause, ms"),
    *("llama-server", "rounds kept"),
)


@contextmanager
def both(model: Path, slots: int, options: argparse.Namespace) -> Generator[list[Server]]:
    """Both servers, loaded."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "edgewise", "serve", "--edge", str(model), "--cloud", "none"]
    command += ["--slots", str(slots), "--ctx", str(options.context), "--port", str(port)]
    command += ["--threads", str(options.threads)]
    flags = {**RECOMMENDED, "n_parallel": slots, "n_ctx": slots * options.context}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ready, log = f"{url}/health", folder / "log"
        pid = stack.enter_context(server_process(command, ready, log=log, folder=folder))
        known = set(tree(os.getpid()))
        other = stack.enter_context(llama_server(model, flags=flags, threads=options.threads))
        theirs = min(set(tree(os.getpid())) - known)
        yield [Server("ours", url, pid), Server("llama-server", other, theirs)]


class Report(NamedTuple):
    """Lines of both tables, and what is said of memory and idle servers."""

    speeds: list[str]
    late: list[str]
    notes: list[str]


async def measure(model: Path, options: argparse.Namespace) -> Report:
    """One model."""
    report = Report([], [], [])
    slots = max(*options.answers, OTHERS + 1 if options.late else 1)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=600)
    with both(model, slots, options) as servers:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            whole = Meter(servers)
            for kind in KINDS:
                for count in options.answers:

                    def once(url: str, number: int, kind: str = kind, count: int = count) -> Any:
                        return together(http, url, prompts(kind, count, number), options.tokens)

                    found = await alternating(servers, options.rounds, options.disturbed, once)
                    report.speeds.extend(speeds_row(model.stem, count, kind, found))
            for kind, tokens in (("short", 0), ("long", options.long)):
                if options.late:

                    def beside(url: str, number: int, tokens: int = tokens) -> Any:
                        rng = random.Random(f"late {tokens} {number}")
                        fifth = f"{said(rng, tokens)} {story(rng)}"
                        return late(http, url, prompts("differ", OTHERS, number + 1000), fifth)

                    found = await alternating(servers, options.late, options.disturbed, beside)
                    report.late.extend(late_row(model.stem, kind, found))
            client = whole.read()[1]
        idle = Meter(servers)
        await asyncio.sleep(1)
        cores = idle.read()[2]
        memory = [f"{server.name} {peak(server.pid):.0f} MB" for server in servers]
        report.notes.append(
            f"{model.stem}, {slots} slots: peak memory {' and '.join(memory)}; the client took "
            f"{client:.0%} of a core; idle servers {cores[0]:.0%} and {cores[1]:.0%}."
        )
    return report


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, action="append", help="a GGUF; repeatable")
    parser.add_argument("--answers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--context", type=int, default=1024, help="of a slot")
    parser.add_argument("--late", type=int, default=5, help="rounds with a fifth request; 0: none")
    parser.add_argument("--long", type=int, default=400, help="tokens of its long prompt, about")
    parser.add_argument(
        "--disturbed", type=float, default=0.2, help="share of the cores that others may take"
    )
    options = parser.parse_args(arguments)
    options.model = options.model or [smollm2_file() or parser.error(f"SmolLM2: {INSTALL}")]
    for path in options.model:
        if not path.is_file():
            parser.error(f"There is no file {path}; give a GGUF.")
    for name in ("rounds", "threads", "tokens", "context", "long"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1.")
    if not all(1 <= count <= 256 for count in options.answers):
        parser.error("--answers must be from 1 to 256.")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    reports = [asyncio.run(measure(model.resolve(), options)) for model in options.model]
    given = sys.argv[1:] if arguments is None else arguments
    print(f"`python -m benchmarks.many {shlex.join(given)}`: {options.threads} threads, ", end="")
    print(f"{os.cpu_count()} cores, {options.rounds} rounds of at most {options.tokens} tokens.\n")
    print("\n".join(line(SPEEDS, head=True) + [row for one in reports for row in one.speeds]))
    if options.late:
        print(f"\nA late request beside {OTHERS} answers of at most {LONG} tokens:\n")
        print("\n".join(line(LATE, head=True) + [row for one in reports for row in one.late]))
    print("\n" + "\n".join(note for one in reports for note in one.notes))


if __name__ == "__main__":
    main()
