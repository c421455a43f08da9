"""Make the bundled pair from nothing: `python -m pocket.build`.

Stages leave their results in `pocket/work/` and are resumed from there; delete it to start over.
"""

import gzip
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer

from pocket.corpus import Corpus, Question
from pocket.export import write_gguf
from pocket.facts import load_facts
from pocket.model import Shape
from pocket.tokenizer import train as train_tokenizer
from pocket.train import Recipe, batches, train

SEED = 20261121
VOCABULARY = 2048
FACTS = 2500
QUESTIONS = 500
"""Frozen questions per family; every other one is for calibration."""

EDGE = Shape(VOCABULARY, width=64, layers=2, heads=2, ffn=192)
CLOUD = Shape(VOCABULARY, width=224, layers=5, heads=7, ffn=608)
EDGE_RECIPE = Recipe(steps=1200, rows=16, length=256, peak=6e-3)
CLOUD_RECIPE = Recipe(steps=3000, rows=16, length=256, peak=2e-3)

_ROOT = Path(__file__).parent
_WORK = _ROOT / "work"
_BUNDLED = _ROOT.parent / "src" / "edgewise" / "bundled"


def _corpus(purpose: str) -> Corpus:
    return Corpus(load_facts(FACTS), random.Random(f"{SEED} {purpose}"))


def _tokenizer() -> Tokenizer:
    path = _WORK / "tokenizer.json"
    if not path.exists():
        sample = islice(_corpus("tokenizer").training(), 40_000)
        train_tokenizer((f"{q.prompt}\n{q.reference}" for q in sample), VOCABULARY).save(str(path))
    return Tokenizer.from_file(str(path))


def _make(name: str, shape: Shape, recipe: Recipe, tokenizer: Tokenizer) -> None:
    torch.manual_seed(SEED)
    data = batches(tokenizer, _corpus(name).training(), recipe)
    model = train(shape, recipe, data, _WORK / f"{name}.pt")
    write_gguf(_BUNDLED / f"{name}.gguf", model, tokenizer, f"Edgewise pocket {name}")


def _frozen() -> Iterator[dict[str, object]]:
    for family in ("facts", "steps"):
        for index, q in enumerate(_corpus(f"frozen {family}").evaluation(family, QUESTIONS)):
            yield _record(f"{family}-{index:04d}", "test" if index % 2 else "calibration", q)


def _record(name: str, split: str, question: Question) -> dict[str, object]:
    return {"id": name, "split": split, **question._asdict()}


def main() -> None:
    """Run every stage that has not run yet."""
    _WORK.mkdir(exist_ok=True)
    tokenizer = _tokenizer()
    lines = "".join(json.dumps(record) + "\n" for record in _frozen())
    # mtime 0: the same questions give the same file.
    packed = gzip.compress(lines.encode(), mtime=0)
    (_BUNDLED / "pocketqa.jsonl.gz").write_bytes(packed)
    _make("edge", EDGE, EDGE_RECIPE, tokenizer)
    _make("cloud", CLOUD, CLOUD_RECIPE, tokenizer)


if __name__ == "__main__":
    main()
