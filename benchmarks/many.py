"""Answers at once: `edgewise serve` beside the real llama-server. `python -m benchmarks.many`.

Both servers have the same GGUF, threads, cores and room, and are asked by one client: streamed
chat, greedy. They take turns, in another order each round; the one that is not asked is idle. A
round in which other programs took more than a fifth of the cores is thrown away and asked again.
Prompts are new in each round: from their first word on (differ), or behind a beginning that all
share and every slot has read before (shared). Tokens a second are of all answers of a round, from
its first request to its last token. Then a fifth request comes while four long answers are
written: its first token, and the longest pause of the four meanwhile. Prints Markdown.
"""

import argparse
import asyncio
import os
import random
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp
import msgspec

from benchmarks.processes import Meter, Server, peak, quiet, tree
from edgewise_lab.tables import line
from tests.llama_server_process import RECOMMENDED, llama_server
from tests.server_process import free_port, server_process
from tests.smollm2_file import INSTALL, smollm2_file

TRIES, SHARED = 5, 200
"""Times the rounds that are wanted; tokens of a shared beginning, about."""

OTHERS, STARTED, LONG = 4, 16, 256
"""Answers beside a late request, the tokens that each has when it comes, and the most it gets."""

NOUNS = (
    *("sailor", "baker", "doctor", "farmer", "painter", "weaver", "fox", "heron", "raven"),
    *("horse", "river", "forest", "castle", "island", "village", "garden", "bridge", "storm"),
)
SPEEDS = (
    *("model", "prompts", "answers", "ours, tokens/s", "llama-server", "ratio of the best"),
    *("ours, median", "llama-server", "ratio of a round", "ended early", "rounds kept"),
)
LATE = (
    *("model", "late prompt", "its tokens", "ours, ms to its first token", "llama-server"),
    *("ours, longest pause of the four, ms", "llama-server", "ours, usual pause, ms"),
    *("llama-server", "rounds kept"),
)
_WRITES = re.compile(rb'"content": ?"(?!")')
_USAGE = re.compile(rb'"prompt_tokens": ?(\d+)'), re.compile(rb'"completion_tokens": ?(\d+)')

Http = aiohttp.ClientSession


class Answer(msgspec.Struct):
    """When it was asked for and when each text came, seconds of the clock, and its tokens."""

    asked: float = 0.0
    stamps: list[float] = []
    prompt: int = 0
    tokens: int = 0


class Round(NamedTuple):
    """Tokens a second of one server, and its answers that ended before they were as long."""

    speed: float
    short: int


class Late(NamedTuple):
    """A late request: seconds to its first text, and the longest pause of the others meanwhile.

    `usual` is their median pause before; `beside` whether all were still written afterwards.
    """

    first: float
    pause: float
    usual: float
    prompt: int
    beside: bool


def said(rng: random.Random, tokens: int) -> str:
    """Sentences of about so many tokens."""
    named = (rng.sample(NOUNS, 3) for _ in range(tokens // 10))
    return " ".join(f"The {one} met the {two} beside the {three}." for one, two, three in named)


def story(rng: random.Random) -> str:
    """A prompt for a long answer."""
    one, two, three = rng.sample(NOUNS, 3)
    return (
        f"{one.title()}, {two}, {three}: write a very long story about these, in twenty chapters. "
        "Tell every detail, and begin with the first chapter."
    )


def prompts(kind: str, count: int, number: int) -> list[str]:
    """Of round `number`."""
    rng = random.Random(f"{kind} {number}")
    beginning = f"{said(random.Random(kind), SHARED)}\n\n" if kind == "shared" else ""
    return [beginning + story(rng) for _ in range(count)]


async def ask(http: Http, url: str, prompt: str, tokens: int, answer: Answer) -> None:
    """Fill `answer` as it comes."""
    messages, usage = [{"role": "user", "content": prompt}], {"include_usage": True}
    body = {"model": "edgewise", "messages": messages, "max_tokens": tokens, "temperature": 0}
    body |= {"stream": True, "stream_options": usage}
    answer.asked, end = time.perf_counter(), b""
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            sys.exit(f"{url} answered {response.status}: {(await response.text())[:300]}")
        async for chunk in response.content.iter_any():
            if _WRITES.search(chunk):
                answer.stamps.append(time.perf_counter())
            end = (end + chunk)[-4000:]
    counts = [int(found) for part in _USAGE for found in part.findall(end)[-1:]]
    if not answer.stamps or len(counts) < 2:
        sys.exit(f"{url} ended an answer without text or usage: {end[-300:].decode()}")
    answer.prompt, answer.tokens = counts


async def together(http: Http, kind: str, count: int, tokens: int, url: str, number: int) -> Round:
    """Answers at once."""
    answers = [Answer() for _ in range(count)]
    texts = zip(prompts(kind, count, number), answers, strict=True)
    await asyncio.gather(*(ask(http, url, text, tokens, answer) for text, answer in texts))
    begun = min(answer.asked for answer in answers)
    end = max(answer.stamps[-1] for answer in answers)
    short = sum(answer.tokens < tokens for answer in answers)
    return Round(sum(answer.tokens for answer in answers) / (end - begun), short)


async def late(http: Http, tokens: int, url: str, number: int) -> Late:
    """A request with about so many tokens before its question, beside answers being written."""
    answers, fifth = [Answer() for _ in range(OTHERS)], Answer()
    texts = zip(prompts("before", OTHERS, number), answers, strict=True)
    before = asyncio.gather(*(ask(http, url, text, LONG, answer) for text, answer in texts))
    while not before.done() and min(len(answer.stamps) for answer in answers) < STARTED:
        await asyncio.sleep(0.002)
    rng = random.Random(f"late {tokens} {number}")
    await ask(http, url, f"{said(rng, tokens)} {story(rng)}", STARTED, fifth)
    await before
    return seen(fifth, [answer.stamps for answer in answers])


def seen(fifth: Answer, others: Sequence[Sequence[float]]) -> Late:
    """What the late request waited, and what the answers beside it did."""
    came = fifth.stamps[0]
    pauses = [pair for stamps in others for pair in pairwise(stamps)]
    usual = [after - before for before, after in pauses if after <= fifth.asked] or [0.0]
    during = [after - before for before, after in pauses if after > fifth.asked and before < came]
    beside = all(stamps[-1] > came for stamps in others)
    return Late(came - fifth.asked, max(during, default=0), median(usual), fifth.prompt, beside)


async def alternating(
    servers: Sequence[Server], rounds: int, most: float, once: Callable[[str, int], Any]
) -> tuple[list[Any], int]:
    """What `once` gives of ours and theirs in each round that is kept, and the rounds asked."""
    kept, tried = list[Any](), 0
    while len(kept) < rounds and tried < TRIES * rounds:
        tried += 1
        if not await quiet(servers, most):
            continue
        found: dict[Server, Any] = {}
        for server in servers if tried % 2 else servers[::-1]:
            meter = Meter(servers)
            found[server] = await once(server.url, tried)
            if meter.read()[0] > most:
                break
        else:
            kept.append([found[server] for server in servers])
    return kept, tried


def spread(values: Sequence[float], digits: int) -> str:
    """The median, with the lowest and the highest."""
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def speeds_of(kept: Sequence[tuple[Round, Round]]) -> list[str]:
    """The best and the median of each, and their ratios."""
    if not kept:
        return ["-"] * 7
    ours, theirs = ([one.speed for one in side] for side in zip(*kept, strict=True))
    short = [sum(one.short for one in side) for side in zip(*kept, strict=True)]
    cells = [f"{max(ours):.1f}", f"{max(theirs):.1f}", f"{max(ours) / max(theirs):.3f}"]
    cells += [f"{median(ours):.1f}", f"{median(theirs):.1f}"]
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return [*cells, spread(ratios, 3), f"{short[0]} and {short[1]}"]


def late_of(kept: Sequence[tuple[Late, Late]]) -> list[str]:
    """Milliseconds of ours and theirs."""
    if not kept:
        return ["-"] * 7
    cells = [f"{kept[0][0].prompt}"]
    for name in ("first", "pause", "usual"):
        for side in zip(*kept, strict=True):
            cells.append(spread([1000 * getattr(one, name) for one in side], 0))
    return cells


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
        started = server_process(command, f"{url}/health", log=folder / "log", folder=folder)
        pid = stack.enter_context(started)
        known = set(tree(os.getpid()))
        other = stack.enter_context(llama_server(model, flags=flags, threads=options.threads))
        theirs = min(set(tree(os.getpid())) - known)
        yield [Server(url, pid), Server(other, theirs)]


async def measure(model: Path, options: argparse.Namespace) -> tuple[list[str], list[str], str]:
    """One model: the rows of both tables, and what is said of memory and idle servers."""
    speeds, lates = list[str](), list[str]()
    slots = max(*options.answers, OTHERS + 1 if options.late else 1)
    timeout, connector = aiohttp.ClientTimeout(600), aiohttp.TCPConnector(limit=0, force_close=True)
    with both(model, slots, options) as servers:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            whole = Meter(servers)
            for kind in ("differ", "shared"):
                for server in servers:
                    await together(http, kind, slots, options.tokens, server.url, 0)
                for count in options.answers:
                    once = partial(together, http, kind, count, options.tokens)
                    kept, tried = await alternating(servers, options.rounds, options.most, once)
                    tail = [*speeds_of(kept), f"{len(kept)}/{tried}"]
                    speeds += line([model.stem, kind, str(count), *tail])
                    print(speeds[-1], file=sys.stderr)
            for kind, tokens in (("short", 0), ("long", options.long)) if options.late else ():
                once = partial(late, http, tokens)
                rounds, tried = await alternating(servers, options.late, options.most, once)
                rounds = [pair for pair in rounds if all(one.beside for one in pair)]
                lates += line([model.stem, kind, *late_of(rounds), f"{len(rounds)}/{tried}"])
                print(lates[-1], file=sys.stderr)
            client = whole.read()[1][0]
        idle = Meter(servers)
        await asyncio.sleep(1)
        _, ours, theirs = idle.read()[1]
        peaks = " and ".join(f"{peak(server.pid):.0f} MB" for server in servers)
    note = (
        f"{model.stem}, {slots} slots of {options.context} tokens, ours and llama-server: peak "
        f"memory {peaks}, idle {ours:.0%} and {theirs:.0%} of a core; the client {client:.1%}."
    )
    return speeds, lates, note


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, action="append", help="a GGUF; repeatable")
    parser.add_argument("--answers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a slot")
    parser.add_argument("--late", type=int, default=5, help="rounds of a fifth request; 0: none")
    parser.add_argument("--long", type=int, default=400, help="tokens of its long prompt, about")
    parser.add_argument("--most", type=float, default=0.2, help="other programs' share of cores")
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
    given = shlex.join(sys.argv[1:] if arguments is None else arguments)
    reports = [asyncio.run(measure(model.resolve(), options)) for model in options.model]
    speeds, lates, notes = zip(*reports, strict=True)
    print(
        f"`python -m benchmarks.many {given}`: {options.threads} threads, {os.cpu_count()} cores, "
        f"{options.rounds} rounds of answers of at most {options.tokens} tokens.\n"
    )
    print(*line(SPEEDS, head=True), *(row for rows in speeds for row in rows), sep="\n")
    if options.late:
        print(f"\n{options.late} rounds of {OTHERS} answers of at most {LONG} tokens; medians.\n")
        print(*line(LATE, head=True), *(row for rows in lates for row in rows), sep="\n")
    print("", *notes, sep="\n")


if __name__ == "__main__":
    # The servers end as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
