"""How many sessions one engine serves: `python -m benchmarks.capacity`.

Devices write `--pace` tokens a second and ask the engine for a share of them, one token each,
with the prompt and the answer so far; *cloud-only* sessions get every token from the engine at the
same pace. Both are served while at most 5 % of what is due (consults, or tokens) comes more than
300 ms after it was due. Open loop: see `benchmarks.capacity.sessions`. The largest number of
sessions that holds is searched, then has to hold in `--repeats` longer runs.

`--table held`: the same sessions at an engine that holds fewer KV caches than there are sessions,
without and with what the engine has for that. `--table gpu`: what limits sessions on a large GPU,
computed. Prints Markdown.
"""

import argparse
import asyncio
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from benchmarks.capacity.engines import Room, Served, client, served
from benchmarks.capacity.search import largest
from benchmarks.capacity.sessions import Load, Run, Texts
from benchmarks.capacity.tables import Row, gpu_tables, held_table, sessions_table
from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.base import Client
from edgewise.sampling import Sampling
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

QUESTIONS = 2000
"""Of pocketqa, for the ids of prompts and answers."""

_TRIAL = 8
_CONFIRMED = 2  # times as long as a run of the search
_CACHE_RAM = 8192
_OFFLOADED = ("--kv-offloading-size", "1")


class Sizes(NamedTuple):
    """What all loads of a table have in common.

    `seeds`: one for each run, or the engine would have its prompts in the cache from another.
    """

    base: Load
    repeats: int
    seeds: Iterator[int]


def texts() -> Texts:
    """The ids of questions of pocketqa, one after the other."""
    with LlamaModel(bundled("edge"), threads=1) as model:
        asked = pocketqa().questions[:QUESTIONS]
        return Texts([id for one in asked for id in model.tokenizer.encode(one.prompt)])


def run(at: Served, load: Load, ids: Texts) -> Row:
    row = asyncio.run(_run(at, load, ids))
    print(_told(row), file=sys.stderr, flush=True)
    return row


async def _run(at: Served, load: Load, ids: Texts) -> Row:
    engine = at.engine()
    try:
        async with client() as http:
            # What an engine does at its first requests is left out.
            prompt = ids.read(random.Random(-1), load.prompt)
            await engine.complete(prompt, 1, Sampling(), Client(tenant=load.tenant))
            async for _ in at.stream(http, prompt, 1):
                pass

            def stream(prompt: list[int], tokens: int) -> AsyncIterator[int]:
                return at.stream(http, prompt, tokens)

            found, (first, last) = await Run(load, ids, engine, stream).found(
                lambda: at.meter(http)
            )
    finally:
        await engine.close()
    tokens = load.sessions * load.pace * found.seconds
    computed = (last.computed - first.computed) / max(tokens, 1)
    return Row(load, found, computed, (last.written - first.written) / found.seconds)


def _told(row: Row) -> str:
    load, found = row.load, row.found
    ended = "held" if found.holds else "cut off" if found.stopped else "late"
    share = "all" if load.share is None else f"{load.share:.0%}"
    return f"{load.sessions} sessions, {share}: {ended}, p95 {found.percentile(95) * 1000:.0f} ms"


async def _guess(at: Served, load: Load, ids: Texts) -> int:
    """Sessions that the engine may write alone, by how long a few answers take at once."""
    async with client() as http:

        async def one(number: int) -> None:
            prompt = ids.read(random.Random(number), load.prompt)
            async for _ in at.stream(http, prompt, load.answer):
                pass

        await one(0)
        begun = time.perf_counter()
        await asyncio.gather(*map(one, range(1, _TRIAL + 1)))
        return max(1, int(_TRIAL * load.turn / (time.perf_counter() - begun)))


def capacity(at: Served, sizes: Sizes, ids: Texts, *, start: int, most: int) -> list[Row]:
    """Runs at the largest number of sessions of which all held; none where one is too many."""

    def holds(sessions: int) -> bool:
        load = sizes.base._replace(sessions=sessions, seed=next(sizes.seeds))
        return run(at, load, ids).found.holds

    found = largest(holds, start=start, most=most)
    while found:
        seconds = _CONFIRMED * sizes.base.seconds
        load = sizes.base._replace(sessions=found, seconds=seconds)
        rows: list[Row] = []
        for _ in range(sizes.repeats):
            rows.append(run(at, load._replace(seed=next(sizes.seeds)), ids))
            if not rows[-1].found.holds:
                break
        else:
            return rows
        found = found * 9 // 10
    return []


def sessions(options: argparse.Namespace, ids: Texts) -> list[str]:
    """The table of sessions served, cloud-only first."""
    base = _load(options)
    room = Room(options.slots, _room(base))
    rows: list[list[Row]] = []
    seeds = count()
    with served(options.engine, options.model, room, options.folder) as at:
        start = asyncio.run(_guess(at, base, ids))
        for share in (None, *options.shares):
            sizes = Sizes(base._replace(share=share), options.repeats, seeds)
            rows.append(capacity(at, sizes, ids, start=start, most=options.slots))
            start = rows[-1][0].load.sessions if rows[-1] else start
    return sessions_table([None, *options.shares], rows, options.slots)


def held(options: argparse.Namespace, ids: Texts) -> list[str]:
    """The table of the same sessions with room for fewer of their KV caches."""
    wanted = options.sessions
    load = _load(options)._replace(share=options.shares[0], sessions=wanted)
    rows: list[tuple[Room, Row | str]] = []
    rams = (0, _CACHE_RAM) if options.engine == "llama-server" else (0,)
    for slots in (wanted, wanted // 2, wanted // 4):
        for ram in rams:
            room = Room(max(1, slots), _room(load), ram)
            # A server that keeps prompts in memory chooses the slot itself.
            asked = load._replace(tenant="" if ram else "load")
            with served(options.engine, options.model, room, options.folder) as at:
                rows.append((room, run(at, asked, ids)))
    if options.engine == "vllm":
        rows.append(_offloaded(options, ids, load))
    return held_table(rows)


def _offloaded(options: argparse.Namespace, ids: Texts, load: Load) -> tuple[Room, Row | str]:
    """With caches in memory beside the engine's own; or why that does not start."""
    room = Room(max(1, options.sessions // 4), _room(load), 1024)
    try:
        with served("vllm", options.model, room, options.folder, flags=_OFFLOADED) as at:
            return room, run(at, load, ids)
    except RuntimeError:
        log = (options.folder / f"vllm-{options.model}" / "vllm.log").read_text()
        told = re.findall(r"\bException: (.+)", log)
        return room, f"does not start: {told[0] if told else 'see its log'}"


def _load(options: argparse.Namespace) -> Load:
    warm = options.warm == "gateway"
    return Load(1, None, options.pace, options.prompt, options.answer, options.seconds, warm)


def _room(load: Load) -> int:
    """Tokens of a session's KV cache, in the steps in which engines allot them."""
    return -(-(load.prompt + load.answer + 1) // 256) * 256


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.table == "gpu":
        print("\n".join(gpu_tables(options.pace, options.prompt / options.answer)))
        return
    if options.engine == "vllm" and "VLLM_PYTHON" not in os.environ:
        print("vLLM is left out: VLLM_PYTHON names no Python that has it.")
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        options.folder = options.folder or Path(temporary)
        options.folder.mkdir(parents=True, exist_ok=True)
        table = {"sessions": sessions, "held": held}[options.table](options, texts())
    print("\n".join(table))
    print(
        f"\n{options.engine}, model {options.model}; {options.pace:g} tokens/s a session, answers "
        f"of {options.answer} tokens one after the other to prompts of {options.prompt} ids, no "
        f"two of which begin alike; warming: {options.warm}."
    )
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.capacity", description=__doc__)
    parser.add_argument("--table", choices=["sessions", "held", "gpu"], default="sessions")
    parser.add_argument("--engine", choices=["llama-server", "vllm"], default="llama-server")
    parser.add_argument("--model", default="bundled", help="or random, smollm2, a GGUF's path")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.01, 0.07])
    parser.add_argument("--pace", type=float, default=10.0, help="tokens a second of a session")
    parser.add_argument("--prompt", type=int, default=200, help="ids")
    parser.add_argument("--answer", type=int, default=100, help="tokens")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured, of a run")
    parser.add_argument("--repeats", type=int, default=1, help="longer runs that have to hold")
    parser.add_argument("--slots", type=int, default=128, help="KV caches that the engine holds")
    parser.add_argument("--sessions", type=int, default=32, help="of the table `held`")
    parser.add_argument("--warm", choices=["gateway", "nothing"], default="gateway",
                        help="what is computed before a consult needs it")  # fmt: skip
    parser.add_argument("--folder", type=Path, help="where models are kept (default: nowhere)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
