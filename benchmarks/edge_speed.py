"""Decoding speed and memory on a 0.5B-shaped model: the whole loop against the bare engine.

python -m benchmarks.edge_speed [--contexts 128,1024] [--blocks 5] [--tokens 64] [--json]
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save_file

from benchmarks import random_qwen
from benchmarks.memory import peak_memory
from edgewise.bench.speed import Speed, measure
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.card import CONFIG, WEIGHTS, RouterCard
from edgewise.routers.mlp import Mlp

HIDDEN_LAYER = 64
WANTED_RATIO, ALLOWED_MEMORY = 0.97, 1.1
MODEL, ROUTER = "random-qwen.gguf", "router"


class Memory(msgspec.Struct, frozen=True):
    """Peak resident memory of two processes, MB."""

    bare: float
    edgewise: float
    ratio: float


class Report(msgspec.Struct, frozen=True):
    """What a run found."""

    threads: int
    speeds: tuple[Speed, ...]
    memory: Memory


def write_router(folder: Path, model: LlamaModel) -> None:
    """A random perceptron over the hidden state, made for `model`."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    width = model.hidden_size
    tensors = {
        "mean": np.zeros(width, np.float32),
        "std": np.ones(width, np.float32),
        "layers.0.weight": rng.standard_normal((HIDDEN_LAYER, width), np.float32) / width**0.5,
        "layers.0.bias": np.zeros(HIDDEN_LAYER, np.float32),
        "layers.1.weight": rng.standard_normal((1, HIDDEN_LAYER), np.float32) / 8,
        "layers.1.bias": np.zeros(1, np.float32),
    }
    save_file(
        {name: tensor.astype(np.float32) for name, tensor in tensors.items()}, folder / WEIGHTS
    )
    card = RouterCard(
        kind="mlp",
        edge_fingerprint=model.fingerprint(),
        tokenizer_fingerprint=fingerprint(model.tokenizer),
        hidden_size=width,
        inputs=("hidden",),
    )
    (folder / CONFIG).write_bytes(msgspec.json.encode(card))


def load(folder: Path, *, context: int, threads: int | None) -> LlamaModel:
    """The model in `folder`, on the CPU."""
    return LlamaModel(folder / MODEL, context=context, threads=threads, gpu_layers=0)


def decoder_for(model: LlamaModel, folder: Path) -> Decoder:
    """Every token scored by the router and none sent to a cloud."""
    card = msgspec.json.decode((folder / ROUTER / CONFIG).read_bytes(), type=RouterCard)
    return Decoder(model, router=Mlp(card, folder / ROUTER), policy=Policy(threshold=1.0))


def peak_of(kind: str, folder: Path, options: argparse.Namespace) -> float:
    """Peak memory of a fresh process that runs one loop alone."""
    command = [sys.executable, "-m", "benchmarks.edge_speed", "--only", kind]
    command += ["--folder", str(folder), "--contexts", str(max(options.contexts))]
    command += ["--tokens", str(options.tokens)]
    if options.threads:
        command += ["--threads", str(options.threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def run_only(kind: str, folder: Path, options: argparse.Namespace) -> float:
    """Run one loop in this process; its peak resident memory, MB."""
    context = max(options.contexts)
    prompt = [1000 + 7 * index for index in range(context)]
    with load(folder, context=context + options.tokens + 2, threads=options.threads) as model:
        if kind == "bare":
            model.bare_loop(prompt, options.tokens)
        else:
            decoder_for(model, folder).generate(prompt, max_tokens=options.tokens + 1)
    return peak_memory()


def run(folder: Path, options: argparse.Namespace) -> Report:
    """Build what is missing in `folder` and measure."""
    if not (folder / MODEL).exists():
        random_qwen.build(folder / MODEL)
    room = max(options.contexts) + options.tokens + 2
    with load(folder, context=room, threads=options.threads) as model:
        write_router(folder / ROUTER, model)
        decoder = decoder_for(model, folder)
        speeds = tuple(
            measure(decoder, context=context, tokens=options.tokens, blocks=options.blocks)
            for context in options.contexts
        )
        threads = model.threads
    bare, whole = (peak_of(kind, folder, options) for kind in ("bare", "edgewise"))
    return Report(threads, speeds, Memory(bare, whole, whole / bare))


def table(report: Report) -> str:
    """The report for people."""
    lines = [f"{'context':>8}{'bare t/s':>10}{'edgewise t/s':>14}{'ratio':>8}  (low to high)"]
    for speed in report.speeds:
        lines.append(
            f"{speed.context:>8}{speed.native_tokens_per_second:>10.1f}"
            f"{speed.edgewise_tokens_per_second:>14.1f}{speed.ratio:>8.3f}"
            f"  ({speed.ratio_low:.3f} to {speed.ratio_high:.3f})"
        )
    memory = report.memory
    lines.append(
        f"peak memory: bare {memory.bare:.0f} MB, edgewise {memory.edgewise:.0f} MB, "
        f"ratio {memory.ratio:.3f}"
    )
    lines.append(
        f"wanted: ratio >= {WANTED_RATIO}, memory <= {ALLOWED_MEMORY}; threads {report.threads}"
    )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.edge_speed", description=__doc__)
    parser.add_argument(
        "--contexts", type=lambda text: [int(part) for part in text.split(",")], default=[128, 1024]
    )
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--folder", type=Path, help="where to keep the model (default: nowhere)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=("bare", "edgewise"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = _options()
    if options.only:
        print(run_only(options.only, options.folder, options))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = run(folder, options)
    print(msgspec.json.encode(report).decode() if options.json else table(report))


if __name__ == "__main__":
    main()
