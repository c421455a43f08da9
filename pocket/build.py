"""Make the pair: `python -m pocket.build` writes both GGUFs and the question set.

Needs WordNet's files (`apt-get install wordnet-base`), a C++ compiler for `torch.compile`, and the
`pocket` extra.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import islice
from pathlib import Path

import torch

from pocket import export, frozen, tokenizer
from pocket.corpus import Corpus, rows
from pocket.facts import all_facts
from pocket.model import Shape
from pocket.train import Recipe, train

BUNDLED = Path(__file__).parents[1] / "src" / "edgewise" / "bundled"
TOKENIZER_DOCUMENTS = 60_000

EDGE = Recipe(
    Shape(vocab=tokenizer.VOCABULARY, width=64, layers=3, heads=2, ffn=192), rows=12_800, batch=32
)
CLOUD = Recipe(
    Shape(vocab=tokenizer.VOCABULARY, width=256, layers=4, heads=4, ffn=704), rows=25_600, batch=64
)


def build(out: Path, seed: int, *, only: str | None = None) -> None:
    """Write edge.gguf, cloud.gguf and pocketqa.jsonl.gz into `out`."""
    facts = all_facts()
    frozen.write(out / "pocketqa.jsonl.gz", frozen.frozen_questions(facts, seed + 1))
    sample = islice(Corpus(facts, seed + 2).documents(), TOKENIZER_DOCUMENTS)
    bpe = tokenizer.train(f"{d.given}{d.learnt}" for d in sample)
    ids, targets = rows(Corpus(facts, seed), bpe, max(EDGE.rows, CLOUD.rows))
    for name, recipe in (("edge", EDGE), ("cloud", CLOUD)):
        if only in (None, name):
            model = train(name, recipe, ids, targets, seed=seed)
            export.write(out / f"{name}.gguf", f"edgewise-pocket-{name}", model, bpe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BUNDLED)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("edge", "cloud"), help="train one of the two")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    build(options.out, options.seed, only=options.only)
    print(f"built in {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
