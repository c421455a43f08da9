"""What routers buy on the bundled pair: `python -m benchmarks.routers`.

Trains a router for each of `--labels` with several seeds, and compares them with those that need no
training and with whole questions: on ordinary questions, on other wordings, on other facts, and on
each family with routers that were trained without it. One threshold for all families, set on the
calibration questions; with `--own` on the very questions, so that all routers spend alike. Prints
Markdown. All is kept in `--work`: interrupted, it goes on.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import cast

from benchmarks.shared import ends, show
from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.pair import open_models
from edgewise.routers.card import read_card
from edgewise.routers.named import identity_of, router_of
from edgewise.settings import Settings
from edgewise_lab.evaluation.plan import SYSTEMS, Contender, Evaluation, manifest
from edgewise_lab.evaluation.report import Row, rows
from edgewise_lab.evaluation.store import Store
from edgewise_lab.evaluation.tasks.base import Split, Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.training.fit import Recipe
from edgewise_lab.training.labels.base import LABELS, Label
from edgewise_lab.training.router import Training

SETS = ("test", "frames", "facts", "left-out")
INPUTS = ("hidden", "top_logprobs", "scalars")
COMPARED = tuple(name for name in SYSTEMS if name not in ("served", "verify", "exact"))

Models = tuple[EdgeModel, CloudModel]
Tasks = tuple[Task, Task]


def of_each(split: str, count: int) -> Task:
    """So many questions of every family, which alternate."""
    task = pocketqa(cast(Split, split))
    return task.first(count * len(task.families))


def parted(task: Task, family: str) -> Tasks:
    """The family's questions, and all others."""
    own = tuple(one for one in task.questions if one.family == family)
    rest = tuple(one for one in task.questions if one.family != family)
    return Task(task.name, own, task.max_tokens), Task(task.name, rest, task.max_tokens)


def trained(
    folder: Path, tasks: Tasks, models: Models, label: Label, seed: int, data: Path
) -> Contender:
    """The router in `folder`, trained there for a label where that is not done."""
    if not (folder / "done").exists():
        training = Training(
            *tasks,
            folder,
            edge=models[0],
            cloud=models[1],
            label=label,
            inputs=INPUTS,
            recipe=Recipe(seed=seed),
            data=data,
        )
        training.collect()
        training.label()
        training.fit()
        (folder / "done").touch()
    card = read_card(folder)
    return Contender(folder.name, router_of(card, folder), identity=identity_of(card, folder))


def routers(options: argparse.Namespace, models: Models, without: str = "") -> list[Contender]:
    """One a label and seed, named LABEL-SEED; `without` the questions of a family."""
    tasks = of_each("train", options.train), of_each("calibration", options.calibration)
    if without:
        tasks = parted(tasks[0], without)[1], parted(tasks[1], without)[1]
    place = options.work / "routers" / (without or "all")
    found: list[Contender] = []
    for name in options.labels:
        label = LABELS.load(name)()
        for seed in range(options.seeds):
            folder, data = place / f"{name}-{seed}", place / f"data-{label.text}"
            found.append(trained(folder, tasks, models, label, seed, data))
    return found


def shown(
    name: str, tasks: Tasks, models: Models, own: list[Contender], options: argparse.Namespace
) -> None:
    """A set's table; answers are kept."""
    place = options.work / "answers" / (f"{name}-own" if options.own else name)
    tasks = (tasks[0], tasks[0]) if options.own else tasks
    store = Store(place, manifest(*tasks, *models))
    edge, cloud = models
    evaluation = Evaluation(*tasks, edge=edge, cloud=cloud, store=store, workers=options.workers)
    found = rows(evaluation.run(own, options.shares, COMPARED))
    print(f"### {name}, {len(tasks[0].questions)} questions\n")
    head = ["system", "asked, %", "right, %", "share, %", "gap recovered, %"]
    show([*head, *found[0].families], map(cells, found))
    print("\nGap recovered, means over seeds: " + ", ".join(means(found, options)) + ".\n")


def cells(row: Row) -> list[str]:
    own, asked = row.overall, row.overall.cloud_share_asked
    gap = "" if own.gap_recovered is None else ends(own.gap_recovered, own.gap_interval)
    parts = [one.gap_recovered for one in row.families.values()]
    return [
        own.system,
        "" if asked is None else f"{100 * asked:g}",
        ends(own.accuracy, own.interval, 1),
        ends(own.cloud_share, own.cloud_share_interval, 1),
        gap,
        *("" if part is None else f"{100 * part:.0f}" for part in parts),
    ]


def means(found: Sequence[Row], options: argparse.Namespace) -> Iterator[str]:
    for label in options.labels:
        for share in options.shares:
            gaps = [
                row.overall.gap_recovered or 0.0
                for row in found
                if row.overall.system.rpartition("-")[0] == label
                and row.overall.cloud_share_asked == share
            ]
            yield f"{label} at {share:.0%} {fmean(gaps):.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = LABELS.names()
    parser.add_argument("--work", type=Path, default=Path("build/routers"))
    parser.add_argument("--labels", nargs="+", choices=known, default=("value",))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=(0.05,))
    parser.add_argument("--train", type=int, default=1000, help="of each family, to train on")
    parser.add_argument("--calibration", type=int, default=150, help="of each, for thresholds")
    parser.add_argument("--questions", type=int, default=400, help="of each, to answer")
    parser.add_argument("--own", action="store_true", help="thresholds from the very questions")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    held_out = of_each("calibration", options.calibration)
    with closing(open_models(Settings(threads=1), answers=options.workers)) as pair:
        models = pair.both()
        for name in options.sets:
            asked = of_each("test" if name == "left-out" else name, options.questions)
            if name != "left-out":
                shown(name, (asked, held_out), models, routers(options, models), options)
                continue
            for family in asked.families:
                tasks = parted(asked, family)[0], parted(held_out, family)[1]
                own = routers(options, models, family)
                shown(f"{name} {family}", tasks, models, own, options)


if __name__ == "__main__":
    main()
