"""Make the pair: `python -m pocket.build` writes both GGUFs and the question set.

Needs WordNet's files (`apt-get install wordnet-base`), a C++ compiler for `torch.compile`, and the
`pocket` extra. Interrupted, it goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import torch

from pocket import export, frozen, tokenizer
from pocket.corpus import Corpus, rows
from pocket.facts import all_facts, chains
from pocket.model import Shape
from pocket.train import Recipe, train
from pocket.wordnet import WordNet

BUNDLED = Path(__file__).parents[1] / "src" / "edgewise" / "bundled"
CHECKPOINTS = Path(__file__).parent / "work"
TOKENIZER_DOCUMENTS = 60_000

EDGE = Recipe(
    Shape(vocab=tokenizer.VOCABULARY, width=96, layers=3, heads=3, ffn=288), rows=76_800, batch=32
)
CLOUD = Recipe(
    Shape(vocab=tokenizer.VOCABULARY, width=256, layers=4, heads=4, ffn=704), rows=72_000, batch=32
)


def build(out: Path, checkpoints: Path, seed: int, *, only: str | None = None) -> None:
    """Write edge.gguf, cloud.gguf and pocketqa.jsonl.gz into `out`."""
    facts = all_facts(WordNet())
    hops = chains(facts)
    frozen.write(out / "pocketqa.jsonl.gz", frozen.frozen_questions(facts, hops, seed + 1))
    sample = islice(Corpus(facts, hops, seed + 2).documents(), TOKENIZER_DOCUMENTS)
    bpe = tokenizer.train(f"{d.given}{d.learnt}" for d in sample)
    for name, recipe in (("edge", EDGE), ("cloud", CLOUD)):
        if only in (None, name):
            text = rows(Corpus(facts, hops, seed), bpe, recipe.rows)
            model = train(name, recipe, text, seed=seed, folder=checkpoints)
            export.write(out / f"{name}.gguf", f"edgewise-pocket-{name}", model, bpe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BUNDLED)
    parser.add_argument("--checkpoints", type=Path, default=CHECKPOINTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("edge", "cloud"), help="train one of the two")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for folder in (options.out, options.checkpoints):
        folder.mkdir(parents=True, exist_ok=True)
    build(options.out, options.checkpoints, options.seed, only=options.only)


if __name__ == "__main__":
    main()
