"""What verification costs on a GPU, and how many sessions it serves: `python -m benchmarks.gpu`.

Models in the shapes of Qwen2.5 with random weights, which take as long as trained ones. It measures
the loop over the bare engine (the edge engine transformers, the first shape), passes over 1 to 256
sessions behind 512 ids, and sessions of 10 tokens/s that are served (`benchmarks.gpu.served`).
Needs torch with CUDA, and for the loop `pip install -e '.[transformers]' gguf`. What fails or does
not fit in time or memory is left out, and said. Prints Markdown; `--out` is written part by part.
"""

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu.model import CONTEXT, SHAPES, WIDTHS, Model
from benchmarks.gpu.served import WAYS, served
from edgewise_lab.tables import line

ROWS = 256
"""Most sessions of a pass."""

TOKENS, REPEATS = 32, 20
"""Of a block of the loop, and of a pass."""


class OutOfTime(Exception):
    """The bound of the whole script has come."""


class Report:
    """What was found, by part, in lists of rows; `left_out` says why a part is missing."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._ends = options, time.monotonic() + options.seconds
        self.failed = False
        name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
        self.found: dict[str, Any] = {"device": name, "torch": torch.__version__}
        self.found |= {"context": CONTEXT, "passes": [], "served": [], "loop": [], "left_out": []}

    def in_time(self) -> None:
        """Raises `OutOfTime`."""
        if time.monotonic() > self._ends:
            raise OutOfTime(f"the {self._options.seconds:g} s are over")

    def part(self, name: str, measure: Callable[[], object]) -> None:
        """Run it, and write the file whatever comes of it: what was found stays."""
        try:
            self.in_time()
            measure()
        except Exception as error:
            if not isinstance(error, OutOfTime | MemoryError | ImportError):
                self.failed = True
                traceback.print_exc()
            self.found["left_out"].append({"part": name, "why": f"{error or repr(error)}"})
        print(f"{name}: {self._ends - time.monotonic():.0f} s left", file=sys.stderr)
        if self._options.out:
            self._options.out.write_text(json.dumps(self.found, indent=1))

    def rows(self, kind: str, **said: object) -> list[dict[str, Any]]:
        return [row for row in self.found[kind] if said.items() <= row.items()]


def measure_shape(report: Report, name: str, options: argparse.Namespace) -> None:
    """Passes of a shape, and what it serves."""
    model = Model(SHAPES[name], torch.device(options.device), rows=ROWS)

    def run(rows: int, width: int) -> float:
        report.in_time()
        return model.run(rows, width)

    def passes() -> None:
        for width in WIDTHS:
            for rows in model.sizes(width):
                run(rows, width)  # prepares it
                taken = [run(rows, width)]
                while len(taken) < REPEATS and sum(taken) < options.each:
                    taken.append(run(rows, width))
                row = {"shape": name, "rows": rows, "width": width, "seconds": median(taken)}
                report.found["passes"].append(row | {"repeats": len(taken)})

    report.part(f"passes of {name}", passes)
    for kind, way in WAYS.items():

        def serve(kind: str = kind, way: Any = way) -> None:
            sessions, computed = served(way, options.load, run, model.sizes, model.held)
            row = {"shape": name, "way": kind, "sessions": sessions, "computed": computed}
            report.found["served"].append(row | {"held": model.held})

        report.part(f"sessions of {name}, {kind}", serve)


def write_folder(model: Model, folder: Path) -> None:
    """The model in transformers' form, with a vocabulary of its size."""
    import gguf
    from safetensors.torch import save_file

    from benchmarks import random_qwen
    from tests.hub_files import write_tokenizer
    from tests.models import Vocabulary

    shape = model.shape
    sizes = random_qwen.Shape(vocabulary=shape.vocabulary, eos=shape.vocabulary - 1)
    tokens = random_qwen.vocabulary(sizes)
    kinds = [gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL]
    merges = [f"{word[:-1]} {word[-1]}" for word in tokens[256:-1]]
    write_tokenizer(folder, Vocabulary("gpt2", tokens, kinds, merges=merges, eos=tokens[-1]))
    config = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocabulary,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": shape.tied,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: weight.cpu() for name, weight in model.tensors()}
    save_file(weights, folder / "model.safetensors")


def measure_loop(report: Report, name: str, options: argparse.Namespace) -> None:
    """The decoder over the edge engine alone, with a router and with a cloud that costs nothing."""
    from benchmarks.agreeing import Agreeing
    from benchmarks.speed import measure, random_prompt
    from edgewise.loop.decoder import Decoder
    from edgewise.loop.policy import Policy
    from edgewise.opening import FALLBACK_ROUTER
    from edgewise.options.transformers.model import TransformersModel
    from edgewise.routers.named import ROUTERS
    from edgewise.testing.scripted_edge import noise

    with TemporaryDirectory() as temporary:
        random = Model(SHAPES[name], torch.device(options.device), rows=1)
        write_folder(random, Path(temporary))
        del random
        room = CONTEXT + 2 * TOKENS
        layers = 0 if options.device == "cpu" else "auto"
        with TransformersModel(
            temporary, context=room, keep_prefixes=True, gpu_layers=layers
        ) as model:
            prompt = random_prompt(model, CONTEXT)
            router = ROUTERS.load(FALLBACK_ROUTER)()
            routed = Decoder(model, router=router, policy=Policy(threshold=1.0))
            agrees = Agreeing(noise(), verifies=True)
            verified = Decoder(model, router=router, policy=Policy(verify="on"), cloud=agrees)
            on_device = 1 / median(_steps(model, prompt) for _ in range(5))
            for way, decoder in (("routed", routed), ("verified", verified)):
                report.in_time()
                found = measure(decoder, context=CONTEXT, tokens=TOKENS, blocks=options.blocks)
                row = {
                    "shape": name,
                    "engine": model.build,
                    "way": way,
                    "on_device": on_device,
                    "bare": found.native_tokens_per_second,
                    "loop": found.edgewise_tokens_per_second,
                    "ratio": (found.ratio, found.ratio_low, found.ratio_high),
                    "undetected": found.undetected,
                }
                report.found["loop"].append(row)


def _steps(model: Any, prompt: Sequence[int]) -> float:
    """Seconds a token of the library alone: the likeliest id is taken on the device."""
    cache = model.new_cache()
    logits, _ = model.run(prompt, cache, every=False)
    token = int(logits[-1].argmax())
    begun = time.perf_counter()
    for _ in range(TOKENS):
        logits, _ = model.run([token], cache, every=False)
        token = int(logits[-1].argmax())
    return (time.perf_counter() - begun) / TOKENS


def tables(report: Report) -> Iterator[str]:
    """Markdown."""
    if report.found["loop"]:
        yield from line(
            [
                "shape",
                "way",
                "library, tokens/s",
                "bare engine",
                "loop",
                "loop / bare",
                "would not show",
            ],
            head=True,
        )
    for row in report.rows("loop"):
        ratio = "{:.3f} ({:.3f} to {:.3f})".format(*row["ratio"])
        cells = [f"{row[key]:.1f}" for key in ("on_device", "bare", "loop")]
        yield from line([row["shape"], row["way"], *cells, ratio, f"{row['undetected']:.1%}"])
    for shape in dict.fromkeys(row["shape"] for row in report.rows("passes")):
        yield ""
        head = [f"{shape}: sessions", "decode step, ms", "tokens/s"]
        yield from line([*head, *(f"{width} verified / step" for width in WIDTHS[1:])], head=True)
        for step in report.rows("passes", shape=shape, width=1):
            rows, seconds = step["rows"], step["seconds"]
            cells = [f"{rows}", f"{1e3 * seconds:.2f}", f"{rows / seconds:,.0f}"]
            for width in WIDTHS[1:]:
                block = report.rows("passes", shape=shape, width=width, rows=rows)
                cells.append(f"{block[0]['seconds'] / seconds:.2f}" if block else "-")
            yield from line(cells)
    if report.found["served"]:
        yield ""
        head = ["shape", "sessions", "served", "computed from full passes", "KV caches that fit"]
        yield from line(head, head=True)
    for row in report.rows("served"):
        cells = [f"{row[key]:,}" for key in ("sessions", "computed", "held")]
        yield from line([row["shape"], row["way"], *cells])
    yield ""
    yield f"{report.found['device']}, torch {report.found['torch']}, random weights."
    for row in report.rows("left_out"):
        yield f"Left out: {row['part']} ({row['why']})."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: 0.5b, 7b, 32b")
    parser.add_argument("--seconds", type=float, default=480.0, help="of the whole")
    parser.add_argument("--each", type=float, default=0.5, help="seconds, of a pass' repeats")
    parser.add_argument("--load", type=float, default=2.0, help="seconds, of a tried number")
    parser.add_argument("--blocks", type=int, default=10, help="of the loop")
    parser.add_argument("--out", type=Path, help="a JSON file of all figures")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device: install a build for it, or add --device cpu.")
    torch.manual_seed(0)
    report = Report(options)
    shapes = options.shape or ["0.5b", "7b", "32b"]
    report.part(f"the loop over {shapes[0]}", lambda: measure_loop(report, shapes[0], options))
    for name in shapes:
        gc.collect()
        report.part(f"the model {name}", lambda name=name: measure_shape(report, name, options))
    print("\n".join(tables(report)))
    sys.exit(report.failed)


if __name__ == "__main__":
    main()
