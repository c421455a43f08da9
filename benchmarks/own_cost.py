"""What a token costs beside the engine's decode: `python -m benchmarks.own_cost`.

The processor time between two calls of `llama_decode`, less that of the bare engine, whose ids take
an argmax: microseconds that a ratio of whole steps cannot show. The decodes are real, since what
they read through the caches makes the code in between slower. Blocks take turns; medians over
tokens. Models and routers are those of `benchmarks.edge_speed`. Prints Markdown.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.agreeing import Agreeing
from benchmarks.edge_speed import ROUTER, gguf, routers_for, scoring
from benchmarks.shared import show
from benchmarks.speed import bare, random_prompt, through
from edgewise.edge.base import EdgeOptions
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.base import Router
from edgewise.testing.scripted_edge import noise

HEAD = ("router", "own cost, us", "bare step, ms", "own cost / step")
BARE, VERIFIED = "bare", "verified, by a cloud that costs nothing"


class Decode(NamedTuple):
    """When a decode began and ended, in seconds of this thread's processor time."""

    begun: float
    ended: float


class Cost(NamedTuple):
    """Seconds of each token of a block, beside its decodes and in them."""

    beside: list[float]
    decodes: list[float]


@contextmanager
def decodes() -> Iterator[list[Decode]]:
    """Those made inside."""
    made: list[Decode] = []
    decode = llama_cpp.llama_decode

    def timed(*arguments: Any) -> int:
        begun = time.thread_time()
        code = decode(*arguments)
        made.append(Decode(begun, time.thread_time()))
        return code

    llama_cpp.llama_decode = timed
    try:
        yield made
    finally:
        llama_cpp.llama_decode = decode


def block(model: LlamaModel, router: Router, prompt: list[int], tokens: int, name: str) -> Cost:
    decoder = scoring(model, router)
    if name == VERIFIED:
        cloud, policy = Agreeing(noise(), verifies=True), Policy(verify="on")
        decoder = Decoder(model, router=router, policy=policy, cloud=cloud)
    ids = (bare if name == BARE else through)(decoder, prompt, tokens)
    with closing(ids), decodes() as made:
        list(ids)
    # What stands before the last is the prompt's.
    made = made[-tokens:]
    return Cost(
        [after.begun - before.ended for before, after in pairwise(made)],
        [decode.ended - decode.begun for decode in made],
    )


def rows(options: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    room = options.context + options.tokens + 2
    path = gguf(folder, options.model, options.parser)
    how = {"threads": options.threads, "gpu_layers": 0, "keep_prefixes": True}
    with LlamaModel(path, EdgeOptions(context=room, **how)) as model:
        routers = routers_for(model, folder / ROUTER)
        first = next(iter(routers.values()))
        arms = {BARE: first, **routers, VERIFIED: first}
        prompt = random_prompt(model, options.context)
        found: dict[str, list[Cost]] = {name: [] for name in arms}
        for number in range(options.blocks + 1):
            for name in list(arms)[:: 1 if number % 2 else -1]:
                cost = block(model, arms[name], prompt, options.tokens, name)
                if number:  # the first round warms caches up
                    found[name].append(cost)
        yield from table(found)


def table(found: dict[str, list[Cost]]) -> Iterator[list[str]]:
    beside = {
        name: median(t for cost in costs for t in cost.beside) for name, costs in found.items()
    }
    step = beside[BARE] + median(seconds for cost in found[BARE] for seconds in cost.decodes)
    for name in list(found)[1:]:
        own = beside[name] - beside[BARE]
        yield [name, f"{1e6 * own:.0f}", f"{1e3 * step:.1f}", f"{own / step:.2%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="0.5b, smollm2, or a GGUF")
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32, help="of a block")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to keep the model (default: nowhere)")
    options = parser.parse_args(None, argparse.Namespace(parser=parser))
    with TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        show(HEAD, rows(options, folder))


if __name__ == "__main__":
    main()
