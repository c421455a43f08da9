"""What a trained router's score costs against a step: `python -m benchmarks.router_cost`.

Perceptrons with random weights (width 64 over hidden size 896) on a random-weight model in the
shape of Qwen2.5-0.5B in 4 bits; the score's time includes what it reads of the 151,936 logits.
Prints Markdown.
"""

import argparse
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.markdown import line
from benchmarks.random_qwen import Shape, build
from edgewise.edge.llamacpp import LlamaModel
from edgewise.routers.card import Input, RouterCard
from edgewise.routers.features import width_of
from edgewise.routers.mlp import TABLE, Mlp
from edgewise_lab.bench.speed import score_seconds
from edgewise_lab.training.publish import save_card, save_weights

HIDDEN_LAYER, TOP_K = 64, 10
INPUTS: tuple[tuple[Input, ...], ...] = (
    ("hidden",),
    ("scalars",),
    ("hidden", "top_logprobs", "scalars"),
    ("hidden", "top_logprobs", "scalars", "token_embedding"),
)


def router(folder: Path, inputs: tuple[Input, ...], shape: Shape) -> Mlp:
    """A checkpoint with random weights."""
    rng = np.random.default_rng(0)
    width = width_of(inputs, shape.hidden, TOP_K)
    tensors = {
        "mean": np.zeros(width, np.float32),
        "std": np.ones(width, np.float32),
        "layers.0.weight": rng.standard_normal((HIDDEN_LAYER, width), np.float32),
        "layers.0.bias": np.zeros(HIDDEN_LAYER, np.float32),
        "layers.1.weight": rng.standard_normal((1, HIDDEN_LAYER), np.float32),
        "layers.1.bias": np.zeros(1, np.float32),
    }
    if "token_embedding" in inputs:
        tensors[TABLE] = np.zeros((shape.vocabulary, HIDDEN_LAYER), np.float16)
    card = RouterCard(
        kind="mlp",
        edge_fingerprint="",
        tokenizer_fingerprint="",
        hidden_size=shape.hidden,
        inputs=inputs,
        top_k=TOP_K,
    )
    save_weights(folder, tensors, [])
    save_card(folder, card, [])
    return Mlp(card, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    lines = line(["inputs", "score, us", "step, ms", "score / step"], head=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = build(folder / "model.gguf")
        with closing(LlamaModel(path, threads=options.threads, context=1024)) as model:
            for inputs in INPUTS:
                score, step = score_seconds(model, router(folder, inputs, Shape()), options.steps)
                cells = [" + ".join(inputs), f"{1e6 * score:.0f}", f"{1e3 * step:.1f}"]
                lines += line([*cells, f"{score / step:.2%}"])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
