"""What the server adds to a token; what a second turn costs: `python -m benchmarks.serve_overhead`.

A 0.5B-shaped model with random weights and the bundled kind of router over its hidden state. Time
per token of a stream over HTTP, from the first token to the last as the client gets them, against
`Decoder.stream()` in this process, in alternating blocks. Then a conversation: time to first token
of a turn after a history of 1,000 ids, and of the next turn, which goes on from it. Random ids.
Prints Markdown.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import httpx2
import numpy as np

from benchmarks import random_qwen
from benchmarks.edge_speed import MODEL, ROUTER, decoder_for, load, write_router
from benchmarks.markdown import line
from edgewise.events import Token
from edgewise.loop.decoder import Decoder
from tests.server.serving import serving


def direct(decoder: Decoder, prompt: Sequence[int], tokens: int) -> float:
    """Seconds a token after the first."""
    times = []
    with decoder.stream(prompt, max_tokens=tokens) as events:
        for event in events:
            if isinstance(event, Token):
                times.append(time.perf_counter())
    return (times[-1] - times[0]) / (len(times) - 1)


def arrivals(client: httpx2.Client, prompt: Sequence[int], tokens: int) -> Iterator[float]:
    """When the request went, and when each token came."""
    body = {"model": "edgewise:edge", "prompt": list(prompt), "max_tokens": tokens, "stream": True}
    body["logprobs"] = 0  # a chunk for every token, also where the text is not yet whole
    yield time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as response:
        for text in response.iter_lines():
            if text.startswith("data: {") and '"finish_reason":null' in text:
                yield time.perf_counter()


def served(client: httpx2.Client, prompt: Sequence[int], tokens: int) -> float:
    """Seconds a token after the first, as the client sees them."""
    _, first, *rest = arrivals(client, prompt, tokens)
    return (rest[-1] - first) / len(rest)


def first_token(client: httpx2.Client, prompt: Sequence[int]) -> float:
    """Seconds to the first token."""
    asked, came, *_ = arrivals(client, prompt, 2)
    return came - asked


def ids(rng: np.random.Generator, count: int) -> list[int]:
    return [int(i) for i in rng.integers(300, 70_000, count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, help="0.5B-shaped GGUF; made when missing")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.model:
            (folder / MODEL).symlink_to(options.model.resolve())
        else:
            random_qwen.build(folder / MODEL)
        with load(folder, context=2048, threads=options.threads) as model:
            write_router(folder / ROUTER, model)
            decoder = decoder_for(model, folder)
            flags = ["--edge", str(folder / MODEL), "--router", str(folder / ROUTER)]
            flags += ["--ctx", "2048", "--threads", str(options.threads), "--cloud", "none"]
            with serving(*flags) as url, httpx2.Client(base_url=url, timeout=300) as client:
                ratios, plain = [], []
                for block in range(options.blocks + 1):
                    prompt = ids(rng, 128)
                    ways = [
                        lambda p=prompt: direct(decoder, p, options.tokens),
                        lambda p=prompt: served(client, p, options.tokens),
                    ]
                    order = (0, 1) if block % 2 else (1, 0)
                    found = {way: ways[way]() for way in order}
                    if block:  # the first block warms caches up
                        plain.append(found[0])
                        ratios.append(found[1] / found[0])
                turns = []
                for _ in range(options.turns):
                    history = ids(rng, 1000)
                    one = first_token(client, history)
                    turns.append((one, first_token(client, [*history, *ids(rng, 24)])))
    head = ["", "median", "lowest", "highest"]
    print("\n".join(line(head, head=True)))
    rows = {
        "Decoder.stream(), ms a token": [1000 * value for value in plain],
        "served / direct": ratios,
        "first token of turn one, ms": [1000 * one for one, _ in turns],
        "first token of turn two, ms": [1000 * two for _, two in turns],
        "turn two / turn one": [two / one for one, two in turns],
    }
    for name, values in rows.items():
        cells = (f"{value:.3g}" for value in (median(values), min(values), max(values)))
        print("\n".join(line([name, *cells])))
    print(f"\n{options.blocks} blocks of {options.tokens} tokens, {options.turns} conversations.")


if __name__ == "__main__":
    main()
