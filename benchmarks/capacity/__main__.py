"""How many sessions one engine serves: `python -m benchmarks.capacity`.

Devices write `--pace` tokens a second and ask the engine for a share of them, one token each,
with the prompt and the answer so far; *cloud-only* sessions get every token from the engine at the
same pace. Both are served while at most 5% of what is due (consults, or tokens) comes more than
300 ms after it was due. Open loop: see `benchmarks.capacity.sessions`. The largest number of
sessions that holds is searched, then has to hold in `--repeats` longer runs. Prints Markdown.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from typing import Any

import aiohttp

from benchmarks.capacity.search import largest
from benchmarks.capacity.sessions import Found, Load, Run, Texts
from benchmarks.shared import metric, show, weights
from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.base import Client
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.errors import CloudProtocolError, CloudUnavailable
from edgewise.sampling import Sampling
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.llama_server_process import RECOMMENDED, llama_server

HEAD = ("consults", "sessions", "of cloud-only", "p50, ms", "p95", "due", "failed", "ids a token")
_TRIAL, _CONFIRMED = 8, 2


def texts() -> Texts:
    """The ids of questions of pocketqa, one after the other."""
    with LlamaModel(bundled("edge"), threads=1) as model:
        asked = pocketqa().first(2000).questions
        return Texts([id for one in asked for id in model.tokenizer.encode(one.prompt)])


async def stream(
    url: str, http: aiohttp.ClientSession, prompt: list[int], tokens: int
) -> AsyncIterator[int]:
    """How many tokens of an answer came, each time that some came."""
    body: dict[str, Any] = {"prompt": prompt, "stream": True, "ignore_eos": True}
    body |= {"temperature": 0.0, "n_predict": tokens, "return_tokens": True}
    try:
        async with http.post(f"{url}/completion", json=body) as response:
            if response.status != 200:
                raise CloudProtocolError(f"{url!r} answered HTTP {response.status}.")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    yield len(json.loads(line[6:]).get("tokens") or ())
    except aiohttp.ClientError as error:
        raise CloudUnavailable(str(error)) from error


async def computed(url: str) -> float:
    """Ids of prompts that it has computed, by its own metrics."""
    return await asyncio.to_thread(metric, url, "prompt_tokens_total")


@contextmanager
def served(options: argparse.Namespace) -> Iterator[str]:
    """A llama-server, with a KV cache for each of `--slots` sessions."""
    # In the steps in which engines allot them.
    room = -(-(options.prompt + options.answer + 1) // 256) * 256
    file = bundled("cloud")
    if options.model != "bundled":
        file = weights(options.model, options.parser)
    flags = {**RECOMMENDED, "endpoint_metrics": True}
    flags |= {"n_parallel": options.slots, "n_ctx": options.slots * room}
    with llama_server(file, flags=flags) as url:
        yield url


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """For streams: as many connections as are asked for, each for one request.

    A server may close a kept one in the moment in which it is used again, which fails a stream.
    """
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield http


async def _run(at: str, load: Load, ids: Texts) -> Found:
    engine = LlamaServerEngine(at)
    try:
        async with client() as http:
            # What an engine does at its first requests is left out.
            prompt = ids.read(random.Random(-1), load.prompt)
            await engine.complete(prompt, 1, Sampling(), Client(tenant=load.tenant))
            async for _ in stream(at, http, prompt, 1):
                pass
            found = await Run(load, ids, engine, partial(stream, at, http)).found(
                lambda: computed(at)
            )
    finally:
        await engine.close()
    ended = "held" if found.holds else "cut off" if found.stopped else "late"
    share = "all" if load.share is None else f"{load.share:.0%}"
    print(f"{load.sessions} sessions, {share}: {ended}", file=sys.stderr, flush=True)
    return found


async def _guess(at: str, load: Load, ids: Texts) -> int:
    """Sessions that the engine may write alone, by how long a few answers take at once."""
    async with client() as http:

        async def one(number: int) -> None:
            prompt = ids.read(random.Random(number), load.prompt)
            async for _ in stream(at, http, prompt, load.answer):
                pass

        await one(0)
        clock = asyncio.get_running_loop().time
        begun = clock()
        await asyncio.gather(*map(one, range(1, _TRIAL + 1)))
        return max(1, int(_TRIAL * load.turn / (clock() - begun)))


class Search:
    """Of one engine; no two runs have a seed, or it would have the prompts from another."""

    def __init__(self, at: str, ids: Texts, options: argparse.Namespace) -> None:
        self.at, self.ids, self.options, self._seeds = at, ids, options, count()

    def _found(self, load: Load) -> Found:
        return asyncio.run(_run(self.at, load._replace(seed=next(self._seeds)), self.ids))

    def capacity(self, base: Load, start: int) -> tuple[int, list[Found]]:
        """The largest number of sessions of which all longer runs held, and these."""
        number = largest(
            lambda sessions: self._found(base._replace(sessions=sessions)).holds,
            start=start,
            most=self.options.slots,
        )
        longer = base._replace(seconds=_CONFIRMED * base.seconds)
        while number:
            found: list[Found] = []
            while len(found) < self.options.repeats and all(one.holds for one in found):
                found.append(self._found(longer._replace(sessions=number)))
            if all(one.holds for one in found):
                return number, found
            number = number * 9 // 10
        return 0, []

    def rows(self) -> Iterator[list[str]]:
        """Cloud-only first."""
        given = self.options
        base = Load(1, None, given.pace, given.prompt, given.answer, given.seconds)
        start, alone = asyncio.run(_guess(self.at, base, self.ids)), 0
        for share in (None, *given.shares):
            number, found = self.capacity(base._replace(share=share), start)
            start, alone = number or start, alone or number
            name = "cloud-only" if share is None else f"{share:.0%} of tokens"
            if not found:
                yield [name, "0", *["-"] * 6]
                continue
            all_slots = " (all slots)" if number == given.slots else ""
            cells = [name, f"{number}{all_slots}", f"{number / alone:.2f}"]
            for part in (50, 95):
                cells.append("/".join(f"{1000 * one.percentile(part):.0f}" for one in found))
            cells += [f"{sum(len(one.late) for one in found)}"]
            cells += [f"{sum(len(one.failed) for one in found)}"]
            tokens = sum(number * given.pace * one.seconds for one in found)
            yield [*cells, f"{sum(one.computed for one in found) / tokens:.2f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.capacity", description=__doc__)
    parser.add_argument("--model", default="bundled", help="or smollm2, a GGUF's path")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.01, 0.07])
    parser.add_argument("--pace", type=float, default=10.0, help="tokens a second of a session")
    parser.add_argument("--prompt", type=int, default=200, help="ids")
    parser.add_argument("--answer", type=int, default=100, help="tokens")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured, of a run")
    parser.add_argument("--repeats", type=int, default=1, help="longer runs that have to hold")
    parser.add_argument("--slots", type=int, default=128, help="KV caches that the engine holds")
    options = parser.parse_args(arguments, argparse.Namespace(parser=parser))
    with served(options) as at:
        show(HEAD, Search(at, texts(), options).rows())
    print(
        f"\nModel {options.model}; {options.pace:g} tokens/s a session, answers "
        f"of {options.answer} tokens one after the other to prompts of {options.prompt} ids."
    )


if __name__ == "__main__":
    main()
