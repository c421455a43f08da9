"""Measure the pair: `python -m pocket.pilot` compares edge, cloud and both together.

The routing rule is the plainest one: the cloud writes a token where the edge's largest probability
is below a threshold, set on the calibration questions to a wanted cloud share.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pocket.build import BUNDLED
from pocket.engine import Engine
from pocket.tokenizer import chat

LONGEST = 90
ROUNDS = 3
LETTER = re.compile(r"\(([a-e])\)")


@dataclass(frozen=True)
class Answer:
    """One generation: its text, the edge's largest probability at each token, who wrote it."""

    text: str
    confidence: list[float]
    routed: int


def largest_probability(logits: np.ndarray) -> float:
    return float(1.0 / np.exp(logits - logits.max()).sum())


def alone(engine: Engine, prompt: str) -> Answer:
    return together(engine, None, prompt, threshold=0.0)


def together(edge: Engine, cloud: Engine | None, prompt: str, threshold: float) -> Answer:
    """Greedy decoding in which `cloud` replaces the tokens below the threshold."""
    new = edge.tokenize(chat(prompt))
    written: list[int] = []
    unseen: list[int] = []
    confidence: list[float] = []
    routed = 0
    edge.reset()
    if cloud is not None:
        cloud.reset()
    while len(written) < LONGEST:
        logits = edge.feed(new)
        unseen.extend(new)
        confidence.append(largest_probability(logits))
        if cloud is not None and confidence[-1] < threshold:
            logits, unseen, routed = cloud.feed(unseen), [], routed + 1
        new = [int(logits.argmax())]
        written.extend(new)
        if new[0] == edge.end:
            break
    return Answer(edge.text(written), confidence, routed)


def right(record: dict[str, object], text: str) -> bool:
    """Grade by the choice's text after `Therefore`, else by its letter; steps by the number."""
    _, _, tail = text.partition("Therefore")
    if record["choices"] is None:
        found = re.search(r"-?\d+", tail)
        return found is not None and found.group() == record["answer"]
    named = [c for c in record["choices"] if re.search(rf"\b{re.escape(c)}\b", tail)]
    if named:
        return named[0] == record["answer"]
    letter = LETTER.search(tail)
    return letter is not None and letter.group(1) == record["label"]


def calibrate(edge: Engine, cloud: Engine, records: list[dict[str, object]], share: float) -> float:
    """The threshold whose share of routed tokens is `share` on the pair's own answers."""
    threshold = 0.0
    for _ in range(ROUNDS):
        answers = [together(edge, cloud, r["prompt"], threshold) for r in records]
        threshold = float(np.quantile(np.concatenate([a.confidence for a in answers]), share))
    return threshold


def interval(difference: np.ndarray, draws: int = 2000) -> tuple[float, float]:
    """95% bootstrap interval of the mean of paired differences."""
    picks = np.random.default_rng(0).integers(0, len(difference), (draws, len(difference)))
    low, high = np.quantile(difference[picks].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def measure(edge: Engine, cloud: Engine, records: list[dict[str, object]], share: float) -> str:
    """One line of figures for the records of one family."""
    tuning = [r for r in records if r["split"] == "calibration"]
    tested = [r for r in records if r["split"] == "test"]
    threshold = calibrate(edge, cloud, tuning, share)
    runs = {
        "edge": [alone(edge, r["prompt"]) for r in tested],
        "cloud": [alone(cloud, r["prompt"]) for r in tested],
        "pair": [together(edge, cloud, r["prompt"], threshold) for r in tested],
    }
    marks = {
        who: np.array([right(r, a.text) for r, a in zip(tested, answers, strict=True)], float)
        for who, answers in runs.items()
    }
    low, high = interval(marks["pair"] - marks["edge"])
    low100, high100 = interval((marks["pair"] - marks["edge"])[:100])
    tokens = [len(a.confidence) for a in runs["pair"]]
    used = sum(a.routed for a in runs["pair"]) / sum(tokens)
    accuracy = " ".join(f"{who} {mark.mean():.1%}" for who, mark in marks.items())
    return (
        f"n {len(tested)} {accuracy} share {used:.1%} threshold {threshold:.3f} "
        f"pair-edge [{low:+.1%}, {high:+.1%}], first 100 [{low100:+.1%}, {high100:+.1%}], "
        f"{np.mean(tokens):.0f} tokens an answer"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=BUNDLED)
    parser.add_argument("--share", type=float, default=0.06)
    parser.add_argument("--limit", type=int, default=300, help="test questions a family")
    options = parser.parse_args()
    edge, cloud = (Engine(options.folder / f"{name}.gguf") for name in ("edge", "cloud"))
    packed = gzip.decompress((options.folder / "pocketqa.jsonl.gz").read_bytes())
    records = [json.loads(line) for line in packed.decode().splitlines()]
    for family in ("facts", "steps"):
        of_family = [r for r in records if r["family"] == family][: 150 + options.limit]
        print(family, measure(edge, cloud, of_family, options.share), flush=True)


if __name__ == "__main__":
    main()
