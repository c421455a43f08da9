"""What a rewind and a growing context cost on a 0.5B-shaped model: `python -m benchmarks.rewind`.

Random weights, not slowed down. First the engine alone: a step after going back k tokens against a
plain step. Then, as the context grows, time per token of the engine's own loop, of the decoder
with the edge alone, and of the decoder with consults that take 125 ms (a scripted cloud in this
process: every consult changes the token, so every one of them rewinds). Interleaved; prompts are
random ids. Prints Markdown.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import random_qwen
from benchmarks.markdown import line
from edgewise.edge.base import Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise_lab.bench.paper_method import Every

BACK = (1, 4, 16)
EVERY = 14
CONSULT = 0.125


def rewinds(model: LlamaModel, prompt: Sequence[int], repeats: int) -> list[str]:
    """Steps after a rewind against plain ones, in turn."""
    session = model.session(Needs.HIDDEN)
    session.open(prompt)
    session.step()
    plain: list[float] = []
    after: dict[int, list[float]] = {back: [] for back in BACK}
    for number in range(repeats):
        for back in BACK:
            for _ in range(back):
                plain.append(_seconds(session, 1000 + number))
            begun = time.perf_counter()
            session.rewind(len(prompt))
            after[back].append(_seconds(session, 2000 + number, begun))
            session.rewind(len(prompt))
    session.close()
    alone = median(plain)
    cells = [f"{len(prompt)}", f"{1000 * alone:.1f}"]
    return line(cells + [f"{median(after[back]) / alone:.3f}" for back in BACK])


def _seconds(session: Any, token: int, begun: float | None = None) -> float:
    begun = begun or time.perf_counter()
    session.extend([token])
    session.step()
    return time.perf_counter() - begun


def bare(model: LlamaModel, prompt: Sequence[int], tokens: int) -> float:
    """Seconds a token of the engine's own loop, the prompt cached."""
    session = model.session(Needs.HIDDEN)
    session.open(prompt)
    step = session.step()
    begun = time.perf_counter()
    for _ in range(tokens):
        session.extend([step.proposed])
        step = session.step()
    seconds = time.perf_counter() - begun
    session.close()
    return seconds / tokens


def through(decoder: Decoder, prompt: Sequence[int], tokens: int) -> tuple[float, float, float]:
    """Seconds a token after the first, consults a token, and how many of them changed it."""
    answer = decoder.generate(prompt, max_tokens=tokens + 1)
    seconds = sum(token.seconds for token in answer.tokens[1:])
    calls = answer.usage.cloud_tokens
    written = len(answer.tokens) - 1
    return seconds / written, calls / written, answer.usage.correction_tokens / max(1, calls)


def growth(model: LlamaModel, prompt: Sequence[int], tokens: int, blocks: int) -> list[str]:
    """One line: the three loops in turn at this context."""
    alone = Decoder(model, router=Every(EVERY), policy=Policy(cloud_share=0.0))
    cloud: Any = ScriptedCloud(_other(model.tokenizer.size), delay=CONSULT)
    policy = Policy(threshold=0.5, run_ahead=16)
    pair = Decoder(model, router=Every(EVERY), policy=policy, cloud=cloud)
    found: list[tuple[float, float, float, float]] = []
    for block in range(blocks + 1):
        engine = bare(model, prompt, tokens)
        edge, _, _ = through(alone, prompt, tokens)
        seconds, p, d = through(pair, prompt, tokens)
        if block:  # the first block reads the prompt
            found.append((engine, edge / engine, seconds / engine, 1 + p * d * CONSULT / engine))
    engine, edge, ratio, bound = (median(column) for column in zip(*found, strict=True))
    low, high = min(row[2] for row in found), max(row[2] for row in found)
    cells = [f"{len(prompt)}", f"{1000 * engine:.1f}", f"{edge:.3f}"]
    cells += [f"{ratio:.2f} ({low:.2f} to {high:.2f})", f"{bound:.2f}", f"{ratio / bound:.2f}"]
    return line(cells)


def _other(size: int) -> Any:
    """The cloud's token is never the edge's: it follows from the position alone."""

    def script(ids: Sequence[int]) -> Any:
        logits = np.zeros(size, np.float32)
        logits[500 + len(ids) % 1000] = 1.0
        return logits

    return script


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=(128, 512, 1024))
    parser.add_argument("--tokens", type=int, default=56)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, help="0.5B-shaped GGUF; made when missing")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    first = ["context", "plain step, ms", *(f"after going back {back}, ratio" for back in BACK)]
    second = ["context", "engine alone, ms", "decoder, edge alone / engine"]
    second += ["with consults / engine", "bound", "with consults / bound"]
    lines = line(first, head=True)
    grown = line(second, head=True)
    with TemporaryDirectory() as folder:
        path = options.model or random_qwen.build(Path(folder) / "qwen.gguf")
        room = max(options.contexts) + options.tokens + 32
        with LlamaModel(
            path, context=room, threads=options.threads, gpu_layers=0, keep_prefixes=True
        ) as model:
            for context in options.contexts:
                prompt = [int(i) for i in rng.integers(300, 70_000, context)]
                lines += rewinds(model, prompt, options.repeats)
                grown += growth(model, prompt, options.tokens, options.blocks)
    print("\n".join([*lines, "", *grown]))


if __name__ == "__main__":
    main()
