"""What untrained routers buy on the bundled pair: `python -m benchmarks.pocket_routers`.

Edge alone, cloud alone, the oracle, and every router at every cloud share, on pocketqa's test
split. Thresholds are static and set on the calibration split. Prints Markdown.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.calibration import threshold_for
from edgewise.evaluation.oracle import Oracle
from edgewise.evaluation.questions import Question, Split, pocketqa
from edgewise.evaluation.statistics import gap_recovered
from edgewise.evaluation.systems import (
    Outcome,
    alone,
    changed_share,
    cloud_share,
    outcomes,
    paired,
)
from edgewise.registry import router_named

ROUTERS = ("random", "max-prob", "margin", "entropy", "logtoku")
SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10)


class Run(msgspec.Struct, frozen=True):
    """One system's answers; `share` is the cloud share asked for, None where none is."""

    system: str
    share: float | None
    threshold: float | None
    outcomes: list[Outcome]

    def of(self, family: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.family == family]

    def right(self, family: str) -> list[bool]:
        return [outcome.right for outcome in self.of(family)]


def questions_of(split: Split, each: int) -> list[Question]:
    """The first `each` questions of every family."""
    found = pocketqa(split)
    families = {question.family for question in found}
    return found[: each * len(families)]


def run_alone(role: str, each: int) -> Run:
    """`role` is edge or cloud."""
    with LlamaModel(bundled(role), threads=1) as model:
        return Run(role, None, None, outcomes(alone(model), questions_of("test", each)))


def run_oracle(each: int) -> Run:
    with ExitStack() as stack:
        edge = stack.enter_context(LlamaModel(bundled("edge"), threads=1))
        cloud = stack.enter_context(LlamaModel(bundled("cloud"), threads=1))
        oracle = Oracle(edge, cloud)
        stack.callback(oracle.close)
        return Run("oracle", None, None, [oracle.answer(q) for q in questions_of("test", each)])


def run_router(name: str, share: float, each: int, calibration: int) -> Run:
    with ExitStack() as stack:
        edge = stack.enter_context(LlamaModel(bundled("edge"), threads=1))
        cloud = LocalCloud(LlamaModel(bundled("cloud"), threads=1))
        stack.callback(cloud.close)
        router = router_named(name)
        known = questions_of("calibration", calibration)
        threshold = threshold_for(share, router, known, edge=edge, cloud=cloud)
        pair = paired(edge, router, threshold, cloud)
        return Run(name, share, threshold, outcomes(pair, questions_of("test", each)))


def run_all(shares: Sequence[float], each: int, calibration: int) -> list[Run]:
    """Every system, two processes at a time, in the order of the tables."""
    tasks: list[tuple[Callable[..., Run], tuple[object, ...]]] = [
        (run_oracle, (each,)),
        (run_alone, ("edge", each)),
        (run_alone, ("cloud", each)),
    ]
    tasks += [(run_router, (name, s, each, calibration)) for name in ROUTERS for s in shares]
    console = Console(stderr=True)
    with (
        ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool,
        Progress(console=console, transient=True) as progress,
    ):
        bar = progress.add_task("systems", total=len(tasks))
        futures = [pool.submit(function, *arguments) for function, arguments in tasks]
        for future in as_completed(futures):
            future.result()
            progress.advance(bar)
    return [future.result() for future in futures]


def percent(value: float) -> str:
    return f"{100 * value:.0f}"


def tables(runs: Sequence[Run]) -> str:
    """Accuracy, cloud share and gap recovered, per family and averaged over them."""
    by_name = {run.system: run for run in runs if run.share is None}
    edge, cloud = by_name["edge"], by_name["cloud"]
    families = list(dict.fromkeys(outcome.family for outcome in edge.outcomes))
    lines = ["| | " + " | ".join(families) + " | average |", "|---" * (len(families) + 2) + "|"]
    for name in ("edge", "cloud"):
        scores = [sum(run) / len(run) for run in map(by_name[name].right, families)]
        cells = [f"{percent(score)}%" for score in [*scores, sum(scores) / len(scores)]]
        lines.append(f"| {name} alone | " + " | ".join(cells) + " |")
    head = ["router", "asked", "realised", "changed", *families, "average"]
    lines += ["", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for run in runs:
        if run in (edge, cloud):
            continue
        changed = changed_share(run.outcomes)
        first = [
            run.system,
            "" if run.share is None else f"{run.share:.0%}",
            f"{cloud_share(run.outcomes):.1%}",
            "" if changed is None else f"{changed:.0%}",
        ]
        triples = [(edge.right(f), run.right(f), cloud.right(f)) for f in families]
        cells = [
            f"{recovered([triple])} at {cloud_share(run.of(family)):.1%}"
            for family, triple in zip(families, triples, strict=True)
        ]
        lines.append("| " + " | ".join([*first, *cells, f"**{recovered(triples)}**"]) + " |")
    return "\n".join(lines)


def recovered(triples: Sequence[tuple[list[bool], list[bool], list[bool]]]) -> str:
    found = gap_recovered(triples)
    if found is None:
        return "no gap"
    value, (low, high) = found
    return f"{percent(value)} ({percent(low)} to {percent(high)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=500, help="test questions of each family")
    parser.add_argument("--calibration", type=int, default=150, help="and to set thresholds with")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--json", type=Path, help="write every outcome here")
    options = parser.parse_args()
    began = time.monotonic()
    runs = run_all(options.shares, options.questions, options.calibration)
    if options.json:
        options.json.write_bytes(msgspec.json.encode(runs))
    print(tables(runs))
    print(
        f"\n{options.questions} test questions of each family, thresholds from "
        f"{options.calibration} calibration questions of each; in brackets 95% intervals."
    )
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
