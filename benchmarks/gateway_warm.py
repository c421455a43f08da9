"""What pushes save a consult: `python -m benchmarks.gateway_warm`.

A random-weight model of about 100 M parameters in a real llama-server, behind a gateway. The
device writes 16 tokens between two consults, at the pace given; with pushes it sends them on as it
writes, so that the engine has computed them when the consult comes. Blocks alternate. Computed
prompt tokens are the engine's own meter. Prints Markdown.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.markdown import line
from benchmarks.random_qwen import Shape, build
from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.gateway.cloud import GatewayCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from tests.gateway.running import gateway
from tests.llama_server_process import llama_server

SHAPE = Shape(hidden=768, layers=10, heads=12, kv_heads=2, ffn=3072, vocabulary=16_384, eos=16_000)
NEW = 16


def consults(
    cloud: CloudModel, prompt: Sequence[int], count: int, pace: float, *, push: bool
) -> list[tuple[int, float]]:
    """Computed prompt tokens and seconds of each consult after the first."""
    session: CloudSession = cloud.open(Prompt(tuple(prompt)))
    rng = np.random.default_rng(0)
    ids = list(prompt)
    session.ask(ids, 1, Sampling(), 120).result()
    found: list[tuple[int, float]] = []
    for _ in range(count):
        for _ in range(NEW):
            ids.append(int(rng.integers(1000, 15_000)))
            time.sleep(pace)
            if push:
                session.push(ids)
        begun = time.perf_counter()
        completion = session.ask(ids, 1, Sampling(), 120).result()
        found.append((completion.computed or 0, time.perf_counter() - begun))
    session.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, nargs="+", default=(100, 300))
    parser.add_argument("--consults", type=int, default=8, help="in a block")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.03, help="seconds a token of the edge")
    options = parser.parse_args()
    head = ["prompt", "way", "computed tokens a consult", "wait p50, ms", "highest"]
    lines = line(head, head=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        model = build(folder / "cloud.gguf", shape=SHAPE)
        with LlamaModel(model, threads=1, context=64) as loaded:
            tokenizer, parameters = loaded.tokenizer, loaded.parameters
            url = stack.enter_context(llama_server(model))
            running = stack.enter_context(gateway([url]))
            direct, through = LlamaServer(url), GatewayCloud(running.url)
            for cloud in (direct, through):
                stack.callback(cloud.close)
                cloud.check(tokenizer)
        ways = {
            "direct": (direct, False),
            "gateway": (through, False),
            "gateway, pushed": (through, True),
        }
        for length in options.prompts:
            found: dict[str, list[tuple[int, float]]] = {name: [] for name in ways}
            for block in range(options.blocks):
                prompt = [1000 + (7 * i + 13 * block) % 9000 for i in range(length)]
                for name, (cloud, push) in ways.items():
                    found[name] += consults(
                        cloud, prompt, options.consults, options.pace, push=push
                    )
            for name, rows in found.items():
                waits = [1000 * seconds for _, seconds in rows]
                mean = sum(computed for computed, _ in rows) / len(rows)
                cells = [str(length), name, f"{mean:.1f}", f"{median(waits):.1f}"]
                lines += line([*cells, f"{max(waits):.1f}"])
    print("\n".join(lines))
    count = options.blocks * options.consults
    print(f"\n{parameters / 1e6:.0f} M random weights, one thread; {NEW} new tokens before each")
    print(f"consult, {1000 * options.pace:.0f} ms each; {count} consults a line.")


if __name__ == "__main__":
    main()
