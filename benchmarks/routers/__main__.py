"""What routers buy on the bundled pair: `python -m benchmarks.routers`.

Trains routers for every label with several seeds, and the gates (routers that see no model state),
and compares them with the untrained ones, whole questions, the commit point and the oracle at equal
cloud shares: on ordinary questions, on other wordings, on other facts, and on each family with
routers that were trained without it; with one threshold for all families and with one for each.
Prints Markdown.
`--ablation` compares labels and inputs instead. Texts, labels, weights, thresholds and answers are
kept in `--work`: interrupted, it goes on.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.routers import plan as plans
from benchmarks.routers.compare import Compared
from benchmarks.routers.plan import Plan
from benchmarks.routers.tables import Tables, ablation
from edgewise.errors import UsageError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/routers"))
    parser.add_argument("--ablation", action="store_true", help="labels x inputs, one seed")
    parser.add_argument("--labels", nargs="+", choices=plans.labels(), default=plans.labels())
    parser.add_argument("--sets", nargs="+", choices=plans.SETS, default=plans.SETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=(0.02, 0.03, 0.05))
    parser.add_argument("--train", type=int, default=1000, help="of each family, to train on")
    parser.add_argument("--calibration", type=int, default=150, help="of each, for thresholds")
    parser.add_argument("--questions", type=int, default=400, help="of each, to answer")
    options = parser.parse_args()
    # A process a core: threads inside them would only wait for each other.
    os.environ["OMP_NUM_THREADS"] = "1"
    plan = Plan(
        options.work,
        tuple(options.labels),
        1 if options.ablation else options.seeds,
        tuple(sorted(options.shares)),
        ("test",) if options.ablation else tuple(options.sets),
        options.train,
        options.calibration,
        options.questions,
        plans.ABLATED if options.ablation else (plans.INPUTS,),
        baselines=not options.ablation,
    )
    began = time.monotonic()
    try:
        found = Compared(plan)
        found.run()
    except UsageError as error:
        sys.exit(str(error))
    lines = (
        [line for share in plan.shares for line in ablation(found, share)]
        if options.ablation
        else Tables(found).all()
    )
    print("\n".join(lines).lstrip())
    print(
        f"\nOf each family {plan.questions} questions, {plan.calibration} others to set "
        f"thresholds, {plan.train} to train on; {plan.seeds} training seeds; in brackets 95% "
        "intervals."
    )
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
