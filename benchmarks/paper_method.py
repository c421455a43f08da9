"""Against the method of the paper's demo, on the 0.5B shape: `python -m benchmarks.paper_method`.

A 0.5B-shaped edge model with random weights, not slowed down; a small random model of the same
vocabulary in a real llama-server as its cloud (it never agrees, so every consult rewinds: the worst
case for speculating). Both methods ask over the same emulated link in the same run; see
`benchmarks.paper_demo`. Prints Markdown.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import Progress

from benchmarks import random_qwen
from benchmarks.paper_demo import compare
from benchmarks.random_qwen import Shape
from edgewise.edge.llamacpp import LlamaModel
from edgewise_lab.tables import line
from tests.llama_server_process import llama_server

HEAD = ["RTT, ms", "consulted", "of them changed", "edge alone, ms a token", "Edgewise"]
HEAD += ["the paper's method", "ratio (lowest to highest round)"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trips", type=float, nargs="+", default=(100.0,), help="ms")
    parser.add_argument("--share", type=float, default=0.07)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=98)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", type=float, default=25, help="ms added to a consult")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, help="0.5B-shaped GGUF; made when missing")
    options = parser.parse_args()
    lines = line(HEAD, head=True)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        large = options.model or random_qwen.build(folder / "edge.gguf")
        small = Shape(hidden=64, layers=2, heads=2, kv_heads=1, ffn=128)
        cloud = random_qwen.build(folder / "cloud.gguf", seed=1, shape=small)
        room = options.context + options.tokens + 8
        progress = Progress(console=Console(stderr=True), transient=True)
        with (
            llama_server(cloud) as url,
            LlamaModel(large, context=room, threads=options.threads, gpu_layers=0) as edge,
            progress,
        ):
            bar = progress.add_task("rounds", total=(options.rounds + 1) * len(options.trips))
            for trip in options.trips:
                found = compare(
                    edge,
                    url,
                    share=options.share,
                    round_trip=trip / 1000,
                    engine_seconds=options.engine / 1000,
                    context=options.context,
                    tokens=options.tokens,
                    rounds=options.rounds,
                    done=lambda: progress.advance(bar),
                )
                times = (found.edge, found.edgewise, found.paper)
                cells = [f"{trip:.0f}", f"{found.share:.1%}", f"{found.changed:.0%}"]
                cells += [f"{1000 * seconds:.0f}" for seconds in times]
                spread = f"{found.ratio_low:.1f} to {found.ratio_high:.1f}"
                lines += line([*cells, f"{found.ratio:.1f} ({spread})"])
    print("\n".join(lines))
    shown = f"{options.rounds} rounds of {options.tokens} tokens"
    print(f"\n{shown} after {options.context} ids of prose.")


if __name__ == "__main__":
    main()
