"""Decoding speed and memory: the whole loop against the bare engine, with two routers.

python -m benchmarks.edge_speed [--model 0.5b|smollm2|FILE] [--contexts 128 1024] [--blocks 15]

The model is of random weights in the shape of Qwen2.5-0.5B, SmolLM2-135M-Instruct, or any GGUF. The
routers are the one of a pair that has none of its own, and a perceptron over the hidden state. A
ratio is the median over blocks with its 95% interval (`benchmarks.speed`), once by the
clock and once by the time that the process had the processor, which other work disturbs less.
Beside it stands the loss that the blocks cannot tell from none. Prints Markdown.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from safetensors.numpy import save_file

from benchmarks import random_qwen
from benchmarks.processes import peak
from benchmarks.shared import show, weights
from benchmarks.speed import Ratio, bare, measure, random_prompt
from edgewise.edge.base import EdgeOptions
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.opening import FALLBACK_ROUTER
from edgewise.routers.base import Router
from edgewise.routers.card import CONFIG, WEIGHTS, RouterCard
from edgewise.routers.mlp import Mlp
from edgewise.routers.named import ROUTERS

HIDDEN_LAYER = 64
HEAD = (
    *("router", "context", "bare tokens/s", "Edgewise tokens/s", "ratio", "would not show"),
    *("by processor time", "would not show", "same ids"),
)
MODEL, ROUTER = "random-qwen.gguf", "router"
PERCEPTRON = "perceptron"


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


def perceptron(folder: Path) -> Mlp:
    """What `write_router` wrote."""
    card = msgspec.json.decode((folder / CONFIG).read_bytes(), type=RouterCard)
    return Mlp(card, folder)


def scoring(model: LlamaModel, router: Router) -> Decoder:
    """Every token is scored and none sent to a cloud."""
    return Decoder(model, router=router, policy=Policy(threshold=1.0))


def routers_for(model: LlamaModel, folder: Path) -> dict[str, Router]:
    """Both routers; the perceptron is written to `folder`."""
    write_router(folder, model)
    return {FALLBACK_ROUTER: ROUTERS.load(FALLBACK_ROUTER)(), PERCEPTRON: perceptron(folder)}


def gguf(folder: Path, named: str, parser: argparse.ArgumentParser) -> Path:
    """The model's file; the random one is built where `folder` lacks it."""
    if named != "0.5b":
        return weights(named, parser)
    path = folder / MODEL
    return path if path.exists() else random_qwen.build(path)


def peak_of(kind: str, folder: Path, options: argparse.Namespace) -> float:
    """Peak memory of a fresh process that runs one loop alone."""
    command = [sys.executable, "-m", "benchmarks.edge_speed", "--only", kind, "--contexts"]
    command += [str(max(options.contexts)), "--folder", str(folder), "--model", options.model]
    command += ["--tokens", str(options.tokens), "--threads", str(options.threads)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def opened(folder: Path, options: argparse.Namespace) -> LlamaModel:
    room = max(options.contexts) + options.tokens + 2
    path = gguf(folder, options.model, options.parser)
    how = {"threads": options.threads or None, "gpu_layers": 0, "keep_prefixes": not options.only}
    return LlamaModel(path, EdgeOptions(context=room, **how))


def run_only(folder: Path, options: argparse.Namespace) -> float:
    """Run one loop in this process; its peak resident memory, MB."""
    with opened(folder, options) as model:
        prompt = random_prompt(model, max(options.contexts))
        decoder = scoring(model, perceptron(folder / ROUTER))
        if options.only == "bare":
            list(bare(decoder, prompt, options.tokens))
        else:
            decoder.generate(prompt, max_tokens=options.tokens + 1)
    # `ru_maxrss` is carried over from whoever started this process, its status is not.
    return peak(os.getpid())


def rows(folder: Path, options: argparse.Namespace) -> Iterator[list[str]]:
    """Speeds, then memory."""
    with opened(folder, options) as model:
        sizes = {"tokens": options.tokens, "blocks": options.blocks}
        for context in options.contexts:
            for name, router in routers_for(model, folder / ROUTER).items():
                found = measure(scoring(model, router), context=context, **sizes)
                clock = Ratio(found.ratio, found.ratio_low, found.ratio_high, found.undetected)
                speeds = found.native_tokens_per_second, found.edgewise_tokens_per_second
                cells = [name, f"{context}", *(f"{speed:.1f}" for speed in speeds)]
                same = "yes" if found.same_ids else "no"
                yield [*cells, *_told(clock), *_told(found.processor), same]
    alone, whole = (peak_of(kind, folder, options) for kind in ("bare", "edgewise"))
    memory = f"{alone:.0f} MB", f"{whole:.0f} MB", f"{whole / alone:.3f}"
    yield ["peak memory", f"{max(options.contexts)}", *memory, *[""] * 4]


def _told(ratio: Ratio | None) -> list[str]:
    if ratio is None:
        return ["not counted", ""]
    middle = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return [middle, f"{ratio.undetected:.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--model", default="0.5b", help="0.5b, smollm2, or a GGUF")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=16, help="of a block")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to keep the model (default: nowhere)")
    parser.add_argument("--only", choices=("bare", "edgewise"), help=argparse.SUPPRESS)
    options = parser.parse_args(None, argparse.Namespace(parser=parser))
    with TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.only:
            print(run_only(folder, options))
        else:
            show(HEAD, rows(folder, options))


if __name__ == "__main__":
    main()
