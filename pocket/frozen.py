"""The frozen question set: prompts that training never draws."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from pocket import families
from pocket.facts import Chain, Fact
from pocket.families import Knowledge
from pocket.questions import Family, Question, Wording, reserved
from pocket.steps import steps

Draw = Callable[[Knowledge, Wording, Random], Question]
DRAWS: dict[Family, Draw] = {
    "facts": families.facts,
    "two-hop": families.two_hop,
    "analogy": families.analogy,
    "each": families.each,
    "steps": lambda known, wording, rng: steps(wording, rng),
}
APART_IN_256 = 38
USUAL = Wording(styles=("explain", "short"), which="usual")


@dataclass(frozen=True)
class Split:
    """How many questions of each family, in which wordings, and whether about facts kept apart."""

    count: int
    wording: Wording = USUAL
    apart: bool = False


SPLITS = {
    "train": Split(1_000),
    "calibration": Split(250),
    "test": Split(500),
    "frames": Split(400, Wording(styles=("notes",), which="shifted")),
    "facts": Split(400, apart=True),
}
"""To train routers on, to set thresholds with, to report; then what no router was trained on: other
frames for questions and another style of answers, and facts kept apart."""


def kept_apart(fact: Fact) -> bool:
    """Whether only the split `facts` asks for it; decided by a SHA-256 with its subject."""
    # Not of the subject alone: that orders the nouns that are never used, and cuts them off.
    return hashlib.sha256(f"apart {fact.subject}".encode()).digest()[0] < APART_IN_256


def frozen_questions(
    facts: list[Fact], chains: list[Chain], seed: int, *, counts: int | None = None
) -> list[dict[str, object]]:
    """Reserved questions of each family; facts and chains are drawn by the law of training.

    Only the split `train` has references, which some labels read. `counts` stands for the sizes of
    all splits, as a smaller set needs it.
    """
    rng = Random(seed)
    usual = Knowledge(facts, chains, lambda fact: not kept_apart(fact))
    apart = Knowledge(facts, chains, kept_apart)
    records: list[dict[str, object]] = []
    for family, draw in DRAWS.items():
        seen: set[str] = set()
        for name, split in SPLITS.items():
            end = len(seen) + (counts or split.count)
            while len(seen) < end:
                question = draw(apart if split.apart else usual, split.wording, rng)
                if not reserved(question.prompt) or question.prompt in seen:
                    continue
                identity = {"id": f"{family}-{len(seen):04d}", "split": name}
                record = identity | asdict(question)
                if name != "train":
                    del record["reference"]
                records.append(record)
                seen.add(question.prompt)
    return records


def write(path: Path, records: list[dict[str, object]]) -> None:
    """One JSON object a line, compressed without a time stamp: equal sets are equal files."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
