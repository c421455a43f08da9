"""Builds of llama.cpp against each other: `python -m benchmarks.engine_builds PYTHON PYTHON ...`.

Each PYTHON is the interpreter of an environment with Edgewise and one llama.cpp (`edgewise doctor`
says which); the first is what the others are held against. Processor time of a token and of the
prompt, one thread, the engine driven bare. Processes are begun anew each round, since where memory
lies matters, and within a round they take turns forth and back. Prints Markdown.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.edge_speed import gguf
from benchmarks.markdown import line


class Build(NamedTuple):
    """One environment's: seconds of processor time, the least of a round's turns."""

    name: str
    prompt: list[float]
    token: list[float]


def serve(model: Path, context: int, tokens: int) -> None:
    """Say which build this is; then a turn for each line of stdin."""
    from edgewise.bench.speed import random_prompt
    from edgewise.edge.llamacpp import LlamaModel
    from edgewise.edge.llamacpp.library import build

    with LlamaModel(model, threads=1, context=context + tokens + 8, gpu_layers=0) as edge:
        prompt = random_prompt(edge, context)
        print(build(), flush=True)
        for _ in sys.stdin:
            begun = time.process_time()
            written = edge.bare_loop(prompt, tokens)
            next(written)
            read = time.process_time()
            for _ in written:
                pass
            print(read - begun, (time.process_time() - read) / tokens, flush=True)


def one_round(pythons: Sequence[str], arguments: Sequence[str], turns: int) -> list[Build]:
    """The least of so many turns, for each."""
    command = ["-m", "benchmarks.engine_builds", "--serve", *arguments]
    with ExitStack() as stack:
        begun = [
            stack.enter_context(
                subprocess.Popen(
                    [python, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for python in pythons
        ]
        found = [Build(_said(process), [], []) for process in begun]
        there = list(range(len(begun)))
        for number in range(turns):
            for which in there if number % 2 else there[::-1]:
                prompt, token = map(float, _told(begun[which]).split())
                found[which].prompt.append(prompt)
                found[which].token.append(token)
    return [Build(one.name, [min(one.prompt)], [min(one.token)]) for one in found]


def _told(process: "subprocess.Popen[str]") -> str:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return _said(process)


def _said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip() or sys.exit("A build ended: what it said stands above")


def shown(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    parser.add_argument("--model", default="0.5b", help="0.5b, smollm2, or a GGUF's path")
    parser.add_argument("--context", type=int, default=128, help="ids of the prompt")
    parser.add_argument("--tokens", type=int, default=16, help="a turn")
    parser.add_argument("--turns", type=int, default=4, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("build"), help="where a model is made")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    model = gguf(options.folder, options.model)
    if options.serve:
        serve(model, options.context, options.tokens)
        return
    if len(options.pythons) < 2:
        parser.error("name two interpreters or more")
    arguments = ["--model", str(model), "--context", str(options.context)]
    arguments += ["--tokens", str(options.tokens)]
    rounds = [one_round(options.pythons, arguments, options.turns) for _ in range(options.rounds)]
    lines = line(["build", "decode, of the first", "prompt, of the first", "ms a token"], head=True)
    for which, build in enumerate(rounds[0]):
        decode = [found[0].token[0] / found[which].token[0] for found in rounds]
        prompt = [found[0].prompt[0] / found[which].prompt[0] for found in rounds]
        each = median(1000 * found[which].token[0] for found in rounds)
        lines += line([build.name, shown(decode), shown(prompt), f"{each:.1f}"])
    print("\n".join(lines))
    print(
        f"\n{model.stem}, {options.rounds} rounds (lowest to highest), {options.turns} turns of "
        f"{options.tokens} tokens after {options.context} ids; one thread, processor time."
    )


if __name__ == "__main__":
    main()
