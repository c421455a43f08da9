"""What going back costs a hybrid, and a transformer of its shape: `python -m benchmarks.hybrid`.

Both have the shape of Qwen3.5-0.8B (24 layers of width 1024, 248,320 ids) in 4 bits and random
weights; of the hybrid's layers three in four keep a state. First steps with marks against steps
without any, in turn. Then a step after going back k tokens, to where the session was told that it
may come back (the decoder tells it where a consult leaves) and to where it was not, against plain
steps. Seconds are those of this process's CPU with `--cpu-time`, for a machine that has other work;
it needs one thread. Prints Markdown, and whether the figures are those wanted.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from unittest.mock import patch

import gguf
import numpy as np

from benchmarks.markdown import line
from edgewise.edge.base import Needs
from edgewise.edge.kv import KvSession
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.cache import LlamaSequence
from tests import hybrid_models, models

BACK = (1, 2, 4, 8, 16)
SHAPE = hybrid_models.Shape(
    width=1024,
    ffn=3584,
    heads=8,
    kv_heads=2,
    head=256,
    state=128,
    groups=16,
    ranks=16,
    layers=24,
    interval=4,
    context=32_768,
)
SIZE = 248_320
MARKS_WANTED, BACK_WANTED = 1.04, 2.0
"""Steps with marks over steps without, and a step after going back in plain steps, at most."""

Clock = Callable[[], float]


def build(path: Path, kind: str, layers: int) -> Path:
    """About 420 MB of random weights with all layers."""
    vocabulary = models.byte_level()
    words = ("".join(word) for word in product("abcdefghijklmnopqrstuvwxyz", repeat=4))
    more = list(islice(words, SIZE - len(vocabulary.tokens)))
    whole = replace(
        vocabulary,
        tokens=[*vocabulary.tokens, *more],
        kinds=[*vocabulary.kinds, *[gguf.TokenType.NORMAL] * len(more)],
    )
    shape = replace(SHAPE, layers=layers)
    return hybrid_models.write(path, kind, shape=shape, vocabulary=whole, packed=True)


def begun(model: LlamaModel, prompt: Sequence[int]) -> KvSession:
    session = model.session(Needs.NOTHING)
    session.open(prompt)
    session.step()
    return session


def steps(session: KvSession, count: int, clock: Clock) -> float:
    """Seconds a step."""
    started = clock()
    for token in range(count):
        session.extend([300 + token])
        session.step()
    return (clock() - started) / count


def without_marks() -> ExitStack:
    """Models loaded within make no checkpoint but at a prompt's end."""
    stack = ExitStack()
    stack.enter_context(patch.object(LlamaSequence, "spacing", 1 << 30))
    return stack


def marks_cost(marked: KvSession, bare: KvSession, blocks: int, clock: Clock) -> list[float]:
    """Steps with marks over steps without, block by block."""
    ratios: list[float] = []
    for block in range(blocks + 2):
        order = (marked, bare) if block % 2 else (bare, marked)
        spent = {session: steps(session, 16, clock) for session in order}
        if block > 1:  # the first ones write into fresh memory
            ratios.append(spent[marked] / spent[bare])
    return ratios


def back_cost(session: KvSession, repeats: int, clock: Clock, *, told: bool) -> list[float]:
    """A step after going back, in the plain steps just before it, for each of `BACK`."""
    medians: list[float] = []
    for back in BACK:
        found: list[float] = []
        for number in range(repeats):
            plain = steps(session, 5 + number, clock)
            place = session.position
            if told:
                session.checkpoint(place)
            steps(session, back, clock)
            started = clock()
            session.rewind(place)
            session.extend([200 + number])
            session.step()
            found.append((clock() - started) / plain)
        medians.append(median(found))
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--layers", type=int, default=SHAPE.layers, help="fewer to try the script")
    parser.add_argument("--folder", type=Path, help="where the models are kept")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    rng = np.random.default_rng(0)
    prompt = [int(token) for token in rng.integers(300, 70_000, options.prompt)]
    room = options.prompt + 16 * (options.blocks + 4) + 40 * options.repeats * 2 * len(BACK)
    asked = {"context": room, "threads": options.threads, "gpu_layers": 0}
    head = ["model", "plain step, ms", *(f"back {back}, told" for back in BACK)]
    lines = line([*head, *(f"back {back}, not told" for back in BACK)], head=True)
    cost: list[float] = []
    worst: dict[bool, float] = {}
    with TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        for kind in ("llama", "qwen35"):
            path = folder / f"{kind}.gguf"
            path = path if path.exists() else build(path, kind, options.layers)
            with closing(LlamaModel(path, **asked)) as model:
                session = begun(model, prompt)
                if kind == "qwen35":
                    with without_marks(), closing(LlamaModel(path, **asked)) as other:
                        bare = begun(other, prompt)
                        cost = marks_cost(session, bare, options.blocks, clock)
                plain = median(steps(session, 1, clock) for _ in range(16))
                cells = [kind, f"{1000 * plain:.1f}"]
                for told in (True, False):
                    found = back_cost(session, options.repeats, clock, told=told)
                    worst[told] = max(found)  # the hybrid comes last
                    cells += [f"{one:.2f}" for one in found]
                lines += line(cells)
    print("\n".join(lines))
    low, high = min(cost), max(cost)
    print(
        f"\nA step with marks over one without: {median(cost):.3f} ({low:.3f} to {high:.3f}), "
        f"wanted <= {MARKS_WANTED}. After going back up to {BACK[-1]} ids at most "
        f"{worst[True]:.2f} plain steps where it was told, {worst[False]:.2f} where not, wanted < "
        f"{BACK_WANTED:g}."
    )


if __name__ == "__main__":
    main()
