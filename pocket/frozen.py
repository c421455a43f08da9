"""The frozen question set: prompts that training never draws."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import get_args

from pocket.corpus import zipf
from pocket.facts import Chain, Fact
from pocket.questions import (
    Distractors,
    Family,
    Question,
    fact_question,
    reserved,
    step_question,
    two_hop_question,
)

SPLITS = {"train": 1_500, "calibration": 500, "test": 1_000}
"""Questions of each family: to train routers on, to set thresholds with, to report."""


def _draw(
    family: Family, facts: list[Fact], chains: list[Chain], wrong: Distractors, rng: Random
) -> Question:
    if family == "facts":
        fact = rng.choices(facts, cum_weights=zipf(len(facts)))[0]
        return fact_question(fact, wrong.for_fact(fact, rng), rng)
    if family == "two-hop":
        chain = rng.choices(chains, cum_weights=zipf(len(chains)))[0]
        return two_hop_question(chain, wrong.for_chain(chain, rng), rng)
    return step_question(rng)


def frozen_questions(facts: list[Fact], chains: list[Chain], seed: int) -> list[dict[str, object]]:
    """Reserved questions of each family; facts and chains are drawn by the law of training."""
    rng, wrong = Random(seed), Distractors(facts, chains)
    records: list[dict[str, object]] = []
    for family in get_args(Family):
        seen: set[str] = set()
        for split, count in SPLITS.items():
            end = len(seen) + count
            while len(seen) < end:
                question = _draw(family, facts, chains, wrong, rng)
                if not reserved(question.prompt) or question.prompt in seen:
                    continue
                identity = {"id": f"{family}-{len(seen):04d}", "split": split}
                records.append(identity | asdict(question))
                seen.add(question.prompt)
    return records


def write(path: Path, records: list[dict[str, object]]) -> None:
    """One JSON object a line, compressed without a time stamp: equal sets are equal files."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
