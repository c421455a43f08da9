"""Answers at once: `edgewise serve` beside the real llama-server. `python -m benchmarks.many`.

Both servers have the same GGUF, threads, cores and room, and are asked by one client: streamed
chat, greedy. They take turns, in another order each round; the one that is not asked is idle. A
round in which other programs took more than a fifth of the cores is thrown away and asked again.
Prompts are new in each round: from their first word on (differ), or behind a beginning that all
share and every slot has read before (shared). Tokens a second are of all answers of a round, from
its first request to its last token. Prints Markdown.
"""

import argparse
import asyncio
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp
import msgspec

from benchmarks.processes import Meter, Server, peak, quiet, tree
from benchmarks.shared import (
    above_zero,
    cores,
    sentences,
    serving,
    show,
    spread,
    story,
    weights,
)
from tests.llama_server_process import RECOMMENDED, llama_server

TRIES, SHARED = 5, 200
"""Times the rounds that are wanted; tokens of a shared beginning, about."""

SPEEDS = (
    *("model", "prompts", "answers", "ours, tokens/s", "llama-server", "ratio of the best"),
    *("ours, median", "llama-server", "ratio of a round", "ended early", "rounds kept"),
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


def prompts(kind: str, count: int, number: int) -> list[str]:
    """Of round `number`."""
    rng = random.Random(f"{kind} {number}")
    beginning = f"{sentences(random.Random(kind), SHARED)}\n\n" if kind == "shared" else ""
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
    taken = max(one.stamps[-1] for one in answers) - min(one.asked for one in answers)
    short = sum(answer.tokens < tokens for answer in answers)
    return Round(sum(answer.tokens for answer in answers) / taken, short)


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


@contextmanager
def both(model: Path, slots: int, options: argparse.Namespace) -> Generator[list[Server]]:
    """Both servers, loaded."""
    words = ["serve", "--edge", model, "--cloud", "none", "--slots", slots]
    words += ["--ctx", options.context, "--threads", options.threads]
    flags = {**RECOMMENDED, "n_parallel": slots, "n_ctx": slots * options.context}
    with ExitStack() as stack:
        ours = stack.enter_context(serving(*words, ready="/health"))
        known = set(tree(os.getpid()))
        other = stack.enter_context(llama_server(model, flags=flags, threads=options.threads))
        yield [ours, Server(other, min(set(tree(os.getpid())) - known))]


async def measure(model: Path, options: argparse.Namespace) -> tuple[list[list[str]], str]:
    """One model: its rows, and what is said of memory and idle servers."""
    speeds, slots = list[list[str]](), max(options.answers)
    timeout, connector = aiohttp.ClientTimeout(600), aiohttp.TCPConnector(limit=0, force_close=True)
    with both(model, slots, options) as servers:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            for kind in ("differ", "shared"):
                for server in servers:
                    await together(http, kind, slots, options.tokens, server.url, 0)
                for count in options.answers:
                    once = partial(together, http, kind, count, options.tokens)
                    kept, tried = await alternating(servers, options.rounds, options.most, once)
                    tail = [*speeds_of(kept), f"{len(kept)}/{tried}"]
                    speeds.append([model.stem, kind, str(count), *tail])
        idle = Meter(servers)
        await asyncio.sleep(1)
        _, ours, theirs = idle.read()[1]
        peaks = " and ".join(f"{peak(server.pid):.0f} MB" for server in servers)
    note = f"{model.stem}, {slots} slots of {options.context} tokens, ours and llama-server: "
    return speeds, f"{note}peak memory {peaks}, idle {ours:.0%} and {theirs:.0%} of a core."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, action="append", help="a GGUF; repeatable")
    parser.add_argument("--answers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a slot")
    parser.add_argument("--most", type=float, default=0.2, help="other programs' share of cores")
    options = parser.parse_args(arguments)
    models = [weights(path, parser) for path in options.model or [None]]
    above_zero(parser, options, "answers", "rounds", "threads", "tokens", "context")
    reports = [asyncio.run(measure(model, options)) for model in models]
    speeds, notes = zip(*reports, strict=True)
    print(f"{options.threads} threads, {options.rounds} rounds, {options.tokens} tokens at most.\n")
    show(SPEEDS, (row for rows in speeds for row in rows))
    print("", *notes, sep="\n")


if __name__ == "__main__":
    # The servers end as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
