"""Which consults changed a token, which decided an answer: `python -m benchmarks.consults`.

The bundled pair on pocketqa's test split, under each router at one cloud share. At every position
of its answers the token of the model that was not taken is written instead, and the pair goes on
from there. Prints Markdown: consults by family, and the measured value of a consult against the
router's score.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from msgspec.structs import astuple
from rich.console import Console
from rich.progress import Progress

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.parts import open_router
from edgewise.settings import Settings
from edgewise_lab.evaluation.consults import Weighed, curve, spread, weigh
from edgewise_lab.evaluation.plan import Contender, Evaluation
from edgewise_lab.evaluation.statistics import Interval
from edgewise_lab.evaluation.sweep import Store
from edgewise_lab.evaluation.tasks.base import Split, Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

SPREAD = ("router", "family", "questions", "consults", "changed", "mattered", "harmed", "missed")
SPREAD += ("strictly mattered", "harmed", "missed")
CURVE = ("router", "score", "positions", "mean score", "value, %", "strict value, %")


def questions_of(split: Split, each: int) -> Task:
    """The first `each` questions of every family."""
    task = pocketqa(split)
    return task.first(each * len(task.families))


def spread_lines(router: str, found: Sequence[Weighed]) -> list[str]:
    """A line a family, and one over all."""
    lines: list[str] = []
    told = {one.family: astuple(one)[1:] for one in spread(found)}
    told["all"] = tuple(map(sum, zip(*told.values(), strict=True)))
    for family, counts in told.items():
        lines += line([router, family, *map(str, counts)])
    return lines


def curve_lines(router: str, found: Sequence[Weighed]) -> list[str]:
    """A line a bin, from the highest scores down."""
    lines: list[str] = []
    for one in reversed(curve(found)):
        bounds = f"{one.low:.4f} to {one.high:.4f}"
        value = percent(one.value, one.interval)
        strict = percent(one.strict_value, one.strict_interval)
        lines += line([router, bounds, str(one.positions), f"{one.score:.4f}", value, strict])
    return lines


def percent(value: float, interval: Interval) -> str:
    low, high = interval
    return f"{100 * value:.2f} ({100 * low:.2f} to {100 * high:.2f})"


def line(cells: Sequence[str], *, head: bool = False) -> list[str]:
    """One line of a table, with the rule under it where it is the head."""
    drawn = "| " + " | ".join(cells) + " |"
    return [drawn, "|---" * len(cells) + "|"] if head else [drawn]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=400, help="test questions of each family")
    parser.add_argument("--calibration", type=int, default=150, help="and to set thresholds with")
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--routers", nargs="+", default=("bundled", "entropy"))
    options = parser.parse_args(arguments)
    began = time.monotonic()
    task = questions_of("test", options.questions)
    spreads, curves = line(SPREAD, head=True), line(CURVE, head=True)
    with (
        closing(LlamaModel(bundled("edge"), threads=1, slots=2)) as edge,
        closing(LocalCloud(LlamaModel(bundled("cloud"), threads=1, slots=2))) as cloud,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        bar = progress.add_task("answers", total=len(options.routers) * len(task.questions))
        held_out = questions_of("calibration", options.calibration)
        plan = Evaluation(task, held_out, edge=edge, cloud=cloud, store=Store(None, {}))
        for name in options.routers:
            router, card = open_router(Settings(router=name), edge)
            threshold = plan.thresholds(Contender(name, router, card), [options.share])
            found = weigh(
                *(edge, cloud, router, threshold[options.share], task),
                done=lambda: progress.advance(bar),
            )
            spreads += spread_lines(name, found)
            curves += curve_lines(name, found)
    print("\n".join([*spreads, "", *curves]))
    print(
        f"\n{options.questions} test questions of each family, thresholds for a cloud share of "
        f"{options.share:.0%}. Value: right with the cloud's token less right with the edge's; "
        "in brackets 95% intervals over questions."
    )
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
