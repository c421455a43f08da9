"""Decoding speed and memory: the whole loop against the bare engine, with two routers.

python -m benchmarks.edge_speed [--model 0.5b|smollm2|FILE] [--contexts 128,1024] [--blocks 15]

The model is of random weights in the shape of Qwen2.5-0.5B, SmolLM2-135M-Instruct, or any GGUF. The
routers are the one of a pair that has none of its own, and a perceptron over the hidden state. A
ratio is the median over blocks with its 95% interval (`edgewise_lab.bench.speed`), once by the
clock and once by the time that the process had the processor, which other work disturbs less.
Beside it stands the loss that the blocks cannot tell from none. Prints Markdown.
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
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.opening import FALLBACK_ROUTER
from edgewise.routers.base import Router
from edgewise.routers.card import CONFIG, WEIGHTS, RouterCard
from edgewise.routers.mlp import Mlp
from edgewise.routers.named import ROUTERS
from edgewise_lab.bench.speed import Ratio, Speed, bare, measure, random_prompt
from edgewise_lab.tables import line
from tests.smollm2_file import INSTALL, smollm2_file

HIDDEN_LAYER = 64
WANTED_RATIO, ALLOWED_MEMORY = 0.98, 1.1
MODEL, ROUTER = "random-qwen.gguf", "router"
PERCEPTRON = "perceptron"


class Memory(msgspec.Struct, frozen=True):
    """Peak resident memory of two processes, MB."""

    bare: float
    edgewise: float
    ratio: float


class Row(msgspec.Struct, frozen=True):
    """A router at a context."""

    router: str
    speed: Speed


class Report(msgspec.Struct, frozen=True):
    """What a run found."""

    model: str
    threads: int
    rows: tuple[Row, ...]
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


def perceptron(folder: Path) -> Mlp:
    """What `write_router` wrote."""
    card = msgspec.json.decode((folder / CONFIG).read_bytes(), type=RouterCard)
    return Mlp(card, folder)


def decoder_for(model: LlamaModel, folder: Path) -> Decoder:
    """Every token scored by the router in `folder` and none sent to a cloud."""
    return scoring(model, perceptron(folder / ROUTER))


def scoring(model: LlamaModel, router: Router) -> Decoder:
    return Decoder(model, router=router, policy=Policy(threshold=1.0))


def routers_for(model: LlamaModel, folder: Path) -> dict[str, Router]:
    """Both routers; the perceptron is written to `folder`."""
    write_router(folder, model)
    return {FALLBACK_ROUTER: ROUTERS.load(FALLBACK_ROUTER)(), PERCEPTRON: perceptron(folder)}


def gguf(folder: Path, name: str) -> Path:
    """The model's file; the random one is built where `folder` lacks it."""
    if name == "smollm2":
        return smollm2_file() or sys.exit(f"The weights of SmolLM2 are missing: {INSTALL}")
    if name != "0.5b":
        return Path(name)
    path = folder / MODEL
    return path if path.exists() else random_qwen.build(path)


def peak_of(kind: str, folder: Path, options: argparse.Namespace) -> float:
    """Peak memory of a fresh process that runs one loop alone."""
    command = [sys.executable, "-m", "benchmarks.edge_speed", "--only", kind]
    command += ["--folder", str(folder), "--contexts", str(max(options.contexts))]
    command += ["--tokens", str(options.tokens), "--model", options.model]
    if options.threads:
        command += ["--threads", str(options.threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def run_only(kind: str, folder: Path, options: argparse.Namespace) -> float:
    """Run one loop in this process; its peak resident memory, MB."""
    room = max(options.contexts) + options.tokens + 2
    path = gguf(folder, options.model)
    with LlamaModel(path, context=room, threads=options.threads, gpu_layers=0) as model:
        prompt = random_prompt(model, max(options.contexts))
        if kind == "bare":
            list(bare(decoder_for(model, folder), prompt, options.tokens))
        else:
            decoder_for(model, folder).generate(prompt, max_tokens=options.tokens + 1)
    # `ru_maxrss` is carried over from whoever started this process, its status is not.
    held = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(held["VmHWM"].removesuffix(" kB")) / (1 << 10)


def run(folder: Path, options: argparse.Namespace) -> Report:
    """Build what is missing in `folder` and measure."""
    path = gguf(folder, options.model)
    room = max(options.contexts) + options.tokens + 2
    with LlamaModel(
        path, context=room, threads=options.threads, gpu_layers=0, keep_prefixes=True
    ) as model:
        routers = routers_for(model, folder / ROUTER)
        sizes = {"tokens": options.tokens, "blocks": options.blocks}
        rows = tuple(
            Row(name, measure(scoring(model, router), context=context, **sizes))
            for context in options.contexts
            for name, router in routers.items()
        )
        name, threads = model.name, model.threads
    bare, whole = (peak_of(kind, folder, options) for kind in ("bare", "edgewise"))
    return Report(name, threads, rows, Memory(bare, whole, whole / bare))


def table(report: Report) -> list[str]:
    """The report for people."""
    head = ["router", "context", "bare tokens/s", "Edgewise tokens/s", "ratio", "would not show"]
    lines = line([*head, "by processor time", "would not show"], head=True)
    for row in report.rows:
        speed = row.speed
        cells = [row.router, f"{speed.context}", f"{speed.native_tokens_per_second:.1f}"]
        cells.append(f"{speed.edgewise_tokens_per_second:.1f}")
        clock = Ratio(speed.ratio, speed.ratio_low, speed.ratio_high, speed.undetected)
        lines += line([*cells, *_told(clock), *_told(speed.processor)])
    memory, speed = report.memory, report.rows[0].speed
    differ = sum(not row.speed.same_ids for row in report.rows)
    return [
        *lines,
        "",
        f"{report.model}, threads {report.threads}, {speed.blocks} blocks of {speed.tokens} "
        f"tokens; rows in which the two wrote different ids: {differ}. Peak memory: bare "
        f"{memory.bare:.0f} MB, Edgewise {memory.edgewise:.0f} MB, ratio {memory.ratio:.3f}. "
        f"Wanted: ratio >= {WANTED_RATIO}, memory <= {ALLOWED_MEMORY}.",
    ]


def _told(ratio: Ratio | None) -> list[str]:
    if ratio is None:
        return ["not counted", ""]
    middle = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return [middle, f"{ratio.undetected:.1%}"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.edge_speed")
    parser.add_argument(
        "--contexts", type=lambda text: [int(part) for part in text.split(",")], default=[128, 1024]
    )
    parser.add_argument("--model", default="0.5b", help="0.5b, smollm2, or a GGUF")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=16, help="of a block")
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
    print(msgspec.json.encode(report).decode() if options.json else "\n".join(table(report)))


if __name__ == "__main__":
    main()
