"""The paper's method and ours, taken apart: `python -m benchmarks.paper_parts`.

From the method of the paper's demo to ours a part at a time, each part by itself added to it, and
each left out of ours, over the same emulated link in the same run; see
`edgewise_lab.bench.methods`. The cloud is a real llama-server; for pushes a gateway stands before
it. Prompts are prose, consults fall on every 14th token, and each prompt begins as none before it,
so nothing of it is cached.
Pairs:

random: a 0.5B-shaped edge with random weights, not slowed down; a small random cloud that never
        agrees, so every consult rewinds: the worst case for running ahead
same:   SmolLM2-135M at the pace of that edge, and itself as its cloud, which always agrees
half:   the same edge, and itself without six blocks, which agrees about half of the time
never:  the same edge, and itself without most blocks

The paced ones need little of the machine. Prints Markdown.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks import random_qwen
from benchmarks.gateway_process import gateway_process
from benchmarks.markdown import line
from benchmarks.random_qwen import Shape
from benchmarks.real_weights.weights import cloud_file, without_blocks
from edgewise.edge.llamacpp import LlamaModel
from edgewise.testing.link import Quality
from edgewise_lab.bench.method_parts import (
    MethodTimes,
    RoundRatio,
    Variant,
    each_alone,
    each_left_out,
    ladder,
    ratio,
    take_apart,
)
from edgewise_lab.bench.methods import OURS, PAPER, Method, Methods
from edgewise_lab.bench.pace import HALF_BILLION, PacedEdge
from edgewise_lab.bench.paper_method import prose, served_at
from tests.llama_server_process import llama_server

LEFT_OUT = {"same": range(0), "half": range(10, 16), "never": range(4, 28)}
"""Blocks that the cloud lacks."""

ROOM = {"n_ctx": 4096, "cache_ram_mib": 0, "n_threads_http": 64}
"""Text may be more ids to the engine than it was to the device; and a connection that is kept holds
one of its threads until it was idle for 5 s, which who comes then would wait for."""

HEAD = ["method", "ms a token", "of the one before", "the paper's takes times as long"]
HEAD += ["bytes up a consult", "ids computed in a consult"]

Found = dict[Method | None, MethodTimes]


def files(pair: str, folder: Path, options: argparse.Namespace) -> tuple[Path, Path]:
    """Edge and cloud."""
    if pair == "random":
        small = Shape(hidden=64, layers=2, heads=2, kv_heads=1, ffn=128)
        if options.tiny:
            tiny = small._replace(vocabulary=2048, eos=2000)
            edge = random_qwen.build(folder / "edge.gguf", shape=tiny)
            return edge, random_qwen.build(folder / "cloud.gguf", seed=1, shape=tiny)
        edge = options.model or random_qwen.build(folder / "edge.gguf")
        return edge, random_qwen.build(folder / "cloud.gguf", seed=1, shape=small)
    left_out = LEFT_OUT[pair]
    whole = cloud_file()
    return whole, without_blocks(whole, folder / "less.gguf", left_out) if left_out else whole


def measured(pair: str, folder: Path, variants: Sequence[Variant], options: Any) -> Found:
    """Every method's answers for one pair."""
    edge_file, cloud_file_ = files(pair, folder, options)
    room = options.context + options.tokens + 32
    trip = (options.trip + options.engine) / 1000
    progress = Progress(console=Console(stderr=True), transient=True)
    with (
        llama_server(cloud_file_, flags=ROOM) as url,
        gateway_process(url) as gateway,
        LlamaModel(edge_file, context=room, threads=options.threads, gpu_layers=0) as model,
        progress,
    ):
        edge: Any = model if pair == "random" else PacedEdge(model, HALF_BILLION)
        wanted = [None, *(one.method for one in variants)]
        bar = progress.add_task(pair, total=options.rounds * len(set(wanted)))
        at = served_at(url)._replace(gateway=gateway)
        with Methods(edge, at, share=options.share, quality=Quality(round_trip=trip)) as methods:
            return take_apart(
                methods,
                wanted,
                lambda number: prose(edge.tokenizer, options.context, number),
                tokens=options.tokens,
                rounds=options.rounds,
                done=lambda: progress.advance(bar),
            )


def shown(spread: RoundRatio) -> str:
    digits = 2 if spread.value < 10 else 1
    low, high = (f"{end:.{digits}f}" for end in (spread.low, spread.high))
    return f"{spread.value:.{digits}f} ({low} to {high})"


def row(variant: Variant, found: Found) -> list[str]:
    one = found[variant.method]
    against = shown(ratio(found[variant.method], found[variant.other]))
    cells = [variant.name, f"{1000 * one.median:.0f}"]
    cells += ["" if variant.method == variant.other else against]
    cells += [shown(ratio(found[PAPER], one)), f"{one.up:.0f}"]
    cells += ["" if one.computed is None else f"{one.computed:.0f}"]
    return line(cells)


def table(pair: str, found: Found, variants: Sequence[Variant]) -> list[str]:
    """Of one pair; the ladder first, so that what comes behind it is known by name."""
    alone, ours = found[None], found[OURS]
    lines = [f"**{pair}**: {ours.changed / max(1, ours.consults):.0%} of consults changed.", ""]
    lines += line(HEAD, head=True)
    lines += line(["the edge alone", f"{1000 * alone.median:.0f}", "", "", "", ""])
    for variant in variants:
        lines += row(variant, found)
    return [*lines, ""]


def agreement(found: dict[str, Found]) -> list[str]:
    """What running ahead gives where the cloud agrees more or less often."""
    head = ["pair", "changed", "edge alone, ms a token", "the paper's", "all but run-ahead", "ours"]
    lines = line([*head, "ours, of all but run-ahead", "the paper's, of ours"], head=True)
    waits = OURS.without("ahead")
    for pair, one in found.items():
        ours = one[OURS]
        cells = [pair, f"{ours.changed / max(1, ours.consults):.0%} of {ours.consults}"]
        cells += [f"{1000 * one[way].median:.0f}" for way in (None, PAPER, waits, OURS)]
        lines += line([*cells, shown(ratio(ours, one[waits])), shown(ratio(one[PAPER], ours))])
    return lines


def main() -> None:
    options = _options()
    variants = ladder()
    if not options.ladder:
        variants += [*each_alone(), *each_left_out()]
    began = time.monotonic()
    found: dict[str, Found] = {}
    with TemporaryDirectory() as folder:
        for pair in options.pairs:
            found[pair] = measured(pair, Path(folder), variants, options)
            print("\n".join(table(pair, found[pair], variants)), flush=True)
    print("\n".join(agreement(found)))
    print(
        f"\n{options.rounds} rounds of {options.tokens} tokens after {options.context} ids of "
        f"prose, a round trip of {options.trip:.0f} ms, consults {options.engine:.0f} ms longer; "
        "medians with the lowest and the highest round."
    )
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    pairs = ("random", *LEFT_OUT)
    parser.add_argument("--pairs", nargs="+", choices=pairs, default=("random",))
    parser.add_argument("--ladder", action="store_true", help="and nothing beside it")
    parser.add_argument("--trip", type=float, default=100.0, help="ms")
    parser.add_argument("--share", type=float, default=0.07)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--engine", type=float, default=25, help="ms added to a consult")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="random edge, to try the script")
    parser.add_argument("--model", type=Path, help="0.5B-shaped GGUF; made when missing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
