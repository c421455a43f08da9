"""What consults between words cost in quality: `python -m benchmarks.price_of_text`.

The bundled edge with its router, and the bundled cloud model two ways: by ids at any token, and
through a bridge at word seams, as a cloud that takes text only would be asked; then a cloud of
another vocabulary, where both divide the text, and at word seams. Each has thresholds of its own
for every share, found on the calibration split, so that all write the same share; questions are
the same. Prints the gap recovered by family, and accuracy minus that by ids, with 95% intervals
over questions.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress

from benchmarks.markdown import line, percent
from edgewise.addresses import bundled, resolve
from edgewise.cloud.base import CloudModel
from edgewise.cloud.bridge.adapter import Bridge
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.calibration import thresholds_for
from edgewise.evaluation.statistics import difference_interval, gap_recovered
from edgewise.evaluation.systems import (
    CloudAlone,
    Decoded,
    Outcome,
    cloud_share,
    edge_alone,
    paired,
)
from edgewise.evaluation.tasks.base import Task
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.parts import open_router
from edgewise.routers.base import Router
from edgewise.settings import Settings


class Way(NamedTuple):
    """How a cloud is asked, and the same cloud as it answers alone."""

    name: str
    cloud: CloudModel
    alone: CloudModel


def ways(edge: EdgeModel, other: str, stack: ExitStack) -> list[Way]:
    """Those that are compared; what is opened is closed with `stack`."""

    def opened(path: Path) -> LocalCloud:
        return stack.enter_context(closing(LocalCloud(LlamaModel(path, threads=1))))

    def over(cloud: LocalCloud, *, words: bool) -> Bridge:
        return Bridge(cloud, own=cloud.model.tokenizer, edge=edge.tokenizer, words=words)

    same = opened(bundled("cloud"))
    large = opened(resolve(other, "cloud"))
    alone = over(large, words=False)
    return [
        Way("by ids", same, same),
        Way("at words", over(same, words=True), same),
        Way("other vocabulary, where both divide", alone, alone),
        Way("other vocabulary, at words", over(large, words=True), alone),
    ]


def answers(system: Decoded | CloudAlone, task: Task) -> list[Outcome]:
    """To every question."""
    return [system.answer(question) for question in task.questions]


def gaps(
    task: Task, edge: Sequence[Outcome], pair: Sequence[Outcome], cloud: Sequence[Outcome]
) -> list[str]:
    """The gap recovered: of all families, and of each."""

    def right(found: Sequence[Outcome], family: str) -> list[bool]:
        return [one.right for one in found if one.family == family]

    triples = {
        family: (right(edge, family), right(pair, family), right(cloud, family))
        for family in task.families
    }
    open_ones = [t for t in triples.values() if sum(t[2]) > sum(t[0])]
    cells = [percent(found) if (found := gap_recovered(open_ones)) else "no gap"]
    for triple in triples.values():
        found = gap_recovered([triple]) if sum(triple[2]) > sum(triple[0]) else None
        cells.append(percent(found) if found else "no gap")
    return cells


def rows(
    way: Way,
    shares: Sequence[float],
    tasks: tuple[Task, Task],
    edge: EdgeModel,
    router: Router,
    known: dict[str, dict[float, list[Outcome]]],
    alone: list[Outcome],
) -> list[str]:
    """A line of the table for each share; `known` are the answers of ways before this one."""
    task, held_out = tasks
    points = thresholds_for(shares, router, held_out, edge=edge, cloud=way.cloud)
    cloud = answers(CloudAlone(way.alone, edge.tokenizer, task.max_tokens), task)
    mine = known.setdefault(way.name, {})
    lines: list[str] = []
    for share in shares:
        threshold = points[share].threshold
        decoder = paired(edge, router, threshold, way.cloud)
        mine[share] = pair = answers(Decoded(decoder, task.max_tokens), task)
        first = next(iter(known.values()))[share]
        both = [one.right for one in pair], [one.right for one in first]
        minus = (sum(both[0]) - sum(both[1])) / len(pair), difference_interval(*both)
        n = len(pair)
        lines += line(
            [
                *(way.name, f"{share:.0%}", f"{cloud_share(pair):.1%}"),
                f"{sum(one.consults for one in pair) / n:.2f}",
                f"{sum(both[0]) / n:.1%} of {sum(one.right for one in cloud) / n:.1%}",
                percent(minus),
                *gaps(task, alone, pair, cloud),
            ]
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--calibration", type=int, default=150)
    parser.add_argument("--shares", type=float, nargs="+", default=(0.03, 0.05, 0.07, 0.10))
    parser.add_argument("--other", default="bundled:other", help="a GGUF of another vocabulary")
    options = parser.parse_args()
    began = time.monotonic()
    task = pocketqa("test").first(options.questions)
    held_out = pocketqa("calibration").first(options.calibration)
    head = ["cloud", "asked", "share", "consults", "right, of the cloud's", "minus by ids"]
    print("\n".join(line([*head, "gap recovered", *task.families], head=True)))
    with (
        ExitStack() as stack,
        closing(LlamaModel(bundled("edge"), threads=1)) as edge,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        router, _ = open_router(Settings(), edge)
        compared = ways(edge, options.other, stack)
        bar = progress.add_task("ways", total=len(compared))
        known: dict[str, dict[float, list[Outcome]]] = {}
        alone = answers(edge_alone(edge, task.max_tokens), task)
        for way in compared:
            found = rows(way, options.shares, (task, held_out), edge, router, known, alone)
            print("\n".join(found), flush=True)
            progress.advance(bar)
    print(f"\n{options.questions} questions; the edge alone {mean(alone):.1%}.")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


def mean(found: Sequence[Outcome]) -> float:
    return sum(one.right for one in found) / len(found)


if __name__ == "__main__":
    main()
