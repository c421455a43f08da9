"""What untrained routers buy on the bundled pair: `python -m benchmarks.pocket_routers`.

Edge alone, cloud alone, the oracle, and every router at every cloud share, on pocketqa's test
split. Thresholds are static and set on the calibration split. Prints Markdown.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.plan import Evaluation, contender_named
from edgewise.evaluation.report import CLOUD, EDGE, Figures, Row, as_csv, rows
from edgewise.evaluation.sweep import Cell, Store
from edgewise.evaluation.systems import Outcome
from edgewise.evaluation.tasks.base import Split, Task
from edgewise.evaluation.tasks.pocketqa import pocketqa

ROUTERS = ("random", "max-prob", "margin", "entropy")
SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10)
ALONE, BOUNDS = "alone", "bounds"

Outcomes = dict[Cell, list[Outcome]]


def questions_of(split: Split, each: int) -> Task:
    """The first `each` questions of every family."""
    task = pocketqa(split)
    return task.first(each * len(task.families))


def outcomes(part: str, shares: Sequence[float], each: int, calibration: int) -> Outcomes:
    """One part of the table: both models alone, the bounds, or a router."""
    with (
        closing(LlamaModel(bundled("edge"), threads=1, slots=2)) as edge,
        closing(LocalCloud(LlamaModel(bundled("cloud"), threads=1, slots=2))) as cloud,
    ):
        evaluation = Evaluation(
            questions_of("test", each),
            questions_of("calibration", calibration),
            edge=edge,
            cloud=cloud,
            store=Store(None, {}),
        )
        if part == ALONE:
            return evaluation.alone()
        if part == BOUNDS:
            return evaluation.bounds()
        return evaluation.pairs(contender_named(part), shares)


def run(shares: Sequence[float], each: int, calibration: int) -> list[Row]:
    """Every system, one process a core."""
    parts = (ALONE, *ROUTERS, BOUNDS)
    with (
        ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        bar = progress.add_task("parts", total=len(parts))
        futures = [pool.submit(outcomes, part, shares, each, calibration) for part in parts]
        for future in as_completed(futures):
            future.result()
            progress.advance(bar)
    return rows({cell: o for future in futures for cell, o in future.result().items()})


def markdown(table: Sequence[Row]) -> str:
    """Both models alone; then what each system recovers of the gap, by family and averaged."""
    families = list(table[0].families)
    lines = line(["", *families, "average"], head=True)
    for row in table:
        if row.overall.system in (EDGE.system, CLOUD.system):
            scores = [figures.accuracy for figures in row.families.values()]
            scores.append(sum(scores) / len(scores))
            lines += line([f"{row.overall.system} alone", *(f"{100 * s:.1f}%" for s in scores)])
    lines += [
        "",
        *line(["router", "asked", "realised", "changed", *families, "average"], head=True),
    ]
    for row in table:
        figures = row.overall
        if figures.system not in (EDGE.system, CLOUD.system):
            by_family = [f"{gap(f)} at {f.cloud_share:.1%}" for f in row.families.values()]
            asked = "" if figures.share_asked is None else f"{figures.share_asked:.0%}"
            changed = "" if figures.changed is None else f"{figures.changed:.0%}"
            first = [figures.system, asked, f"{figures.cloud_share:.1%}", changed]
            lines += line([*first, *by_family, f"**{gap(figures)}**"])
    return "\n".join(lines)


def line(cells: Sequence[str], *, head: bool = False) -> list[str]:
    """One line of a table, with the rule under it where it is the head."""
    drawn = "| " + " | ".join(cells) + " |"
    return [drawn, "|---" * len(cells) + "|"] if head else [drawn]


def gap(figures: Figures) -> str:
    """The gap recovered in percent, and its interval."""
    if figures.gap_recovered is None or figures.gap_interval is None:
        return "no gap"
    low, high = figures.gap_interval
    return f"{100 * figures.gap_recovered:.0f} ({100 * low:.0f} to {100 * high:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=500, help="test questions of each family")
    parser.add_argument("--calibration", type=int, default=150, help="and to set thresholds with")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--csv", type=Path, help="write every figure here")
    options = parser.parse_args()
    began = time.monotonic()
    table = run(options.shares, options.questions, options.calibration)
    if options.csv:
        options.csv.write_text(as_csv(table), encoding="utf-8")
    print(markdown(table))
    print(
        f"\n{options.questions} test questions of each family, thresholds from "
        f"{options.calibration} calibration questions of each; in brackets 95% intervals."
    )
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
