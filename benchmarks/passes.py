"""Passes of llama.cpp: `python -m benchmarks.passes MODEL.gguf ...`.

Tokens a second by the number of threads, alone and beside programs that keep a core busy; and how
many greedy answers among others differ from the same ones alone, with how far (nats) the two
likeliest tokens were apart where they do. Prints Markdown.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.shared import show
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.library import build
from edgewise.edge.threads import default_threads
from edgewise_lab.evaluation.tasks.named import open_task

TOKENS, AT_ONCE = 64, 4


@contextmanager
def busy(programs: int) -> Generator[None]:
    """So many programs keep a core busy."""
    command = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(command) for _ in range(programs)]
    try:
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()


def written(model: LlamaModel, ids: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """Greedy tokens, and how far the likeliest two were apart, nats."""
    tokens, apart = list[int](), list[float]()
    with closing(model.session()) as session:
        session.open(ids)
        for _ in range(count):
            first, second = session.step().candidates(2)
            tokens.append(first.id)
            apart.append(first.logprob - second.logprob)
            session.extend(tokens[-1:])
    return tokens, apart


def pace(path: str, threads: int | None, ids: Sequence[int]) -> float:
    """Tokens a second, without the prompt's."""
    with (
        LlamaModel(path, threads=threads) as model,
        closing(model.session()) as session,
    ):
        session.open(ids)
        token, begun = session.step().proposed, time.monotonic()
        for _ in range(TOKENS):
            session.extend([token])
            token = session.step().proposed
        return TOKENS / (time.monotonic() - begun)


def by_threads(path: str, ids: Sequence[int]) -> Iterator[list[str]]:
    for threads in (*range(1, default_threads() + 1), None):
        cells = [str(threads or "default")]
        for programs in range(3):
            with busy(programs):
                cells.append(f"{pace(path, threads, ids):.1f}")
        yield cells


def among(path: str, prompts: Sequence[str]) -> str:
    with LlamaModel(path, threads=default_threads(), slots=AT_ONCE) as model:
        ids = [model.tokenizer.encode_prompt(prompt) for prompt in prompts]
        alone = [written(model, one, TOKENS) for one in ids]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            running = [pool.submit(written, model, one, TOKENS) for one in ids]
            others = [one.result()[0] for one in running]
    apart = [
        next(gap for a, b, gap in zip(tokens, other, gaps, strict=True) if a != b)
        for (tokens, gaps), other in zip(alone, others, strict=True)
        if tokens != other
    ]
    told = ", ".join(f"{gap:.3f}" for gap in sorted(apart))
    return f"{len(apart)} of {len(ids)} answers differ, {AT_ONCE} at once, at {told or 'no'} nats"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--task", default="pocketqa")
    parser.add_argument("--data", type=Path, help="a copy of the task's file")
    parser.add_argument("--questions", type=int, default=40)
    asked = parser.parse_args()
    task = open_task(asked.task, data=asked.data).first(asked.questions)
    prompts = [question.prompt for question in task.questions]
    for path in asked.models:
        print(f"{path}, {build()}\n")
        with LlamaModel(path, threads=1) as model:
            ids = model.tokenizer.encode_prompt("Tell a long story of a river and a bridge.")
        show(("threads", "alone", "beside one program", "beside two"), by_threads(path, ids))
        print(f"\n{among(path, prompts)}\n", flush=True)


if __name__ == "__main__":
    main()
