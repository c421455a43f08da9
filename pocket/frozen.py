"""The frozen question set: prompts that training never draws."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from random import Random

from pocket.facts import Fact
from pocket.questions import Distractors, Family, Question, fact_question, reserved, step_question

CALIBRATION = 150
TEST = 300


def _draw(family: Family, facts: list[Fact], wrong: Distractors, rng: Random) -> Question:
    if family == "steps":
        return step_question(rng)
    fact = rng.choice(facts)
    return fact_question(fact, wrong.draw(fact, rng), rng)


def frozen_questions(facts: list[Fact], seed: int) -> list[dict[str, object]]:
    """CALIBRATION + TEST reserved questions of each family, facts drawn evenly over all ranks."""
    rng, wrong = Random(seed), Distractors(facts)
    records: list[dict[str, object]] = []
    for family in ("facts", "steps"):
        seen: set[str] = set()
        while len(seen) < CALIBRATION + TEST:
            question = _draw(family, facts, wrong, rng)
            if not reserved(question.prompt) or question.prompt in seen:
                continue
            split = "calibration" if len(seen) < CALIBRATION else "test"
            identity = {"id": f"{family}-{len(seen):04d}", "split": split}
            records.append(identity | asdict(question))
            seen.add(question.prompt)
    return records


def write(path: Path, records: list[dict[str, object]]) -> None:
    """One JSON object a line, compressed without a time stamp: equal sets are equal files."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
