"""Make the models: `python -m pocket.build` writes the GGUFs and the question set.

Needs WordNet's files (`apt-get install wordnet-base`), a C++ compiler for `torch.compile`, and the
`pocket` extra. Interrupted, it goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch

from pocket import export, frozen
from pocket.corpus import Corpus, rows
from pocket.facts import all_facts, chains
from pocket.model import Shape
from pocket.tokenizer import OTHER, PAIR, Vocabulary
from pocket.train import Recipe, train
from pocket.wordnet import WordNet

ROOT = Path(__file__).parents[1]
BUNDLED = ROOT / "src" / "edgewise" / "bundled"
ELSEWHERE = {
    "pocketqa.jsonl.gz": ROOT / "src" / "edgewise_lab" / "evaluation" / "tasks",
    "other.gguf": ROOT / "tests" / "assets",
}
"""Where a file lies that is not one of the product's."""
CHECKPOINTS = Path(__file__).parent / "work"
TOKENIZER_DOCUMENTS = 60_000


class Made(NamedTuple):
    """One model: what it reads and how it is trained."""

    vocabulary: Vocabulary
    recipe: Recipe


def _made(vocabulary: Vocabulary, rows: int, *sizes: int) -> Made:
    """`sizes` are width, layers, heads and ffn."""
    return Made(vocabulary, Recipe(Shape(vocabulary.entries, *sizes), rows, batch=32))


MODELS = {
    "edge": _made(PAIR, 57_600, 64, 3, 2, 192),
    "cloud": _made(PAIR, 88_000, 256, 4, 4, 704),
    "other": _made(OTHER, 88_000, 256, 4, 4, 704),
}


def build(
    out: Path | None,
    checkpoints: Path,
    seed: int,
    only: Collection[str] = MODELS.keys(),
    device: str = "cpu",
) -> None:
    """Write the models that `only` names, NAME.gguf, and the questions.

    They go to `out`, or with None to where Edgewise reads them.
    """

    def place(name: str) -> Path:
        return (out or ELSEWHERE.get(name, BUNDLED)) / name

    facts = all_facts(WordNet())
    hops = chains(facts)
    frozen.write(place("pocketqa.jsonl.gz"), frozen.frozen_questions(facts, hops, seed + 1))
    for name in only:
        vocabulary, recipe = MODELS[name]
        sample = islice(Corpus(facts, hops, seed + 2).documents(), TOKENIZER_DOCUMENTS)
        bpe = vocabulary.train(d.given(vocabulary) + d.closed(vocabulary) for d in sample)
        ids, targets = rows(Corpus(facts, hops, seed), vocabulary, bpe, recipe.rows)
        model = train(name, recipe, ids, targets, seed=seed, folder=checkpoints, device=device)
        export.write(place(f"{name}.gguf"), f"edgewise-pocket-{name}", model, vocabulary, bpe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="default: in this repository")
    parser.add_argument("--checkpoints", type=Path, default=CHECKPOINTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="as PyTorch names it")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), help="which")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for folder in filter(None, (options.out, options.checkpoints)):
        folder.mkdir(parents=True, exist_ok=True)
    build(options.out, options.checkpoints, options.seed, options.only, options.device)


if __name__ == "__main__":
    main()
