"""What a trained router buys on the bundled pair: `python -m benchmarks.trained_routers`.

Trains one label with several seeds and compares on pocketqa's test split with the untrained
routers at equal cloud shares, thresholds static and set on the calibration split. `--each-family`
sets thresholds for each family by itself, so that all routers spend alike in it; `--ablation`
compares labels and inputs at one share. Prints Markdown. The cloud's answers, features
and labels are kept in `--work`, answers too: interrupted, it goes on.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.pocket_routers import line
from benchmarks.share_drift import of_families
from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.plan import Contender, Evaluation, contender_named, manifest
from edgewise.evaluation.report import CLOUD, EDGE
from edgewise.evaluation.statistics import Seeds, pooled_difference, pooled_gap
from edgewise.evaluation.sweep import Cell, Store
from edgewise.evaluation.systems import Outcome, cloud_share
from edgewise.evaluation.tasks.base import Task
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.routers.card import Input, read_card
from edgewise.routers.mlp import Mlp
from edgewise.routers.named import identity_of
from edgewise.training.kinds import Recipe
from edgewise.training.labels.base import Label
from edgewise.training.labels.named import labels_named
from edgewise.training.router import MIXED_SHARE, Training

LABELS = ("mismatch", "r2r-outcome", "co-llm", "citer", "value")
"""By name; what follows a hyphen after `r2r` is its judge: the bundled cloud cannot be it."""
DEFAULT: tuple[Input, ...] = ("hidden", "top_logprobs", "scalars")
INPUTS: tuple[tuple[Input, ...], ...] = (
    ("scalars",),
    ("top_logprobs",),
    ("hidden",),
    DEFAULT,
    (*DEFAULT, "token_embedding"),
)
RIVALS = ("random", "max-prob", "margin", "entropy")
FAMILY_RIVALS = ("margin", "entropy")
SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10)

Outcomes = dict[Cell, list[Outcome]]


class Variant(NamedTuple):
    """One training."""

    label: str
    inputs: tuple[Input, ...]
    seed: int

    @property
    def name(self) -> str:
        return "-".join([self.label, *self.inputs, str(self.seed)])


class Plan(NamedTuple):
    """Sizes of a run, and where it is kept. With a `family` it and its thresholds are apart."""

    work: Path
    train: int
    calibration: int
    questions: int
    shares: tuple[float, ...]
    family: str | None = None

    def tasks(self) -> tuple[Task, Task]:
        """Questions to answer, and others to set thresholds with."""
        test, held_out = pocketqa("test"), pocketqa("calibration")
        if self.family is not None:
            test, held_out = (of_families(task, [self.family]) for task in (test, held_out))
        count = self.questions * len(test.families)
        return test.first(count), held_out.first(self.calibration)


def opened(stack: ExitStack) -> tuple[LlamaModel, LocalCloud]:
    """The bundled pair, one thread each."""
    edge = LlamaModel(bundled("edge"), threads=1, slots=2)
    cloud = LocalCloud(LlamaModel(bundled("cloud"), threads=1, slots=2))
    stack.callback(edge.close)
    stack.callback(cloud.close)
    return edge, cloud


def rounds_of(label: str) -> list[Label]:
    """What `LABELS` names."""
    name, _, judge = label.partition("r2r-")
    return labels_named("r2r" if judge else name, judge=judge or None)


def trainings(variant: Variant, plan: Plan, edge: LlamaModel, cloud: LocalCloud) -> list[Training]:
    """One a round. Those of several rounds have data of their own: the second is the pair's."""
    rounds = rounds_of(variant.label)
    data = plan.work / (variant.name if len(rounds) > 1 else "") / "data"
    recipe = Recipe(
        hidden=(rounds[0].hidden,) if rounds[0].hidden else (),
        seed=variant.seed,
        objective=rounds[0].objective,
    )
    return [
        Training(
            pocketqa("train").first(plan.train),
            pocketqa("calibration").first(plan.calibration),
            plan.work / variant.name,
            edge=edge,
            cloud=cloud,
            label=label,
            inputs=variant.inputs,
            recipe=recipe,
            data=data,
        )
        for label in rounds
    ]


def prepare(labels: Sequence[str], plan: Plan) -> None:
    """Answers, features and labels, once for all trainings of labels of one round."""
    with ExitStack() as stack:
        edge, cloud = opened(stack)
        for label in labels:
            first, *later = trainings(Variant(label, DEFAULT, 0), plan, edge, cloud)
            if not later:
                first.collect()
                first.label()


def finished(folder: Path, label: str) -> bool:
    """Whether the last round of a training is calibrated."""
    if not (folder / "README.md").exists():
        return False
    card = read_card(folder)
    return bool(card.thresholds) and card.label.startswith(rounds_of(label)[-1].described)


def outcomes(system: Variant | str, plan: Plan) -> Outcomes:
    """Answers of a training, of a router that needs none, or of both models alone."""
    with ExitStack() as stack:
        edge, cloud = opened(stack)
        task, held_out = plan.tasks()
        name = system if isinstance(system, str) else system.name
        place = plan.work / "answers" / (plan.family or "all") / name
        evaluation = Evaluation(
            task,
            held_out,
            edge=edge,
            cloud=cloud,
            store=Store(place, manifest(task, held_out, edge, cloud)),
        )
        if system == EDGE.system:
            return evaluation.alone()
        if isinstance(system, str):
            return evaluation.pairs(contender_named(system), plan.shares)
        folder = plan.work / name
        if not finished(folder, system.label):
            *earlier, last = trainings(system, plan, edge, cloud)
            for training in earlier:
                training.collect()
                training.label()
                training.fit()
                training.calibrate((MIXED_SHARE,))
            if earlier:
                last.label()
            last.fit()
            last.calibrate(plan.shares)
        card = read_card(folder)
        calibrated = card if plan.family is None else None
        contender = Contender(name, Mlp(card, folder), calibrated, identity_of(card, folder))
        return evaluation.pairs(contender, plan.shares)


def run(systems: Sequence[Variant | str], plan: Plan) -> Outcomes:
    """Every system's answers, one process a core."""
    with (
        ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        bar = progress.add_task("systems", total=len(systems))
        futures = [pool.submit(outcomes, system, plan) for system in systems]
        for future in as_completed(futures):
            future.result()
            progress.advance(bar)
    return {cell: found for future in futures for cell, found in future.result().items()}


def right(found: Sequence[Outcome], family: str) -> list[bool]:
    return [outcome.right for outcome in found if outcome.family == family]


def seeds_of(found: Outcomes, names: Sequence[str], share: float, rival: Cell) -> dict[str, Seeds]:
    """By family, for the statistics."""
    families = list(dict.fromkeys(outcome.family for outcome in found[EDGE]))
    return {
        family: Seeds(
            right(found[EDGE], family),
            [right(found[Cell(name, share)], family) for name in names],
            right(found[CLOUD], family),
            right(found[rival], family),
        )
        for family in families
    }


def interval(figure: tuple[float, tuple[float, float]]) -> str:
    value, (low, high) = figure
    return f"{100 * value:.0f} ({100 * low:.0f} to {100 * high:.0f})"


def gap_table(found: Outcomes, systems: Mapping[str, Sequence[str]], plan: Plan) -> list[str]:
    """What each system recovers at each share; `systems` maps a name to its seeds' cells."""
    families = list(dict.fromkeys(outcome.family for outcome in found[EDGE]))
    lines = line(["router", "asked", "realised", "right", *families, "average"], head=True)
    for name, cells in systems.items():
        for share in plan.shares:
            by_family = seeds_of(found, cells, share, EDGE)
            outcomes = [o for cell in cells for o in found[Cell(cell, share)]]
            accuracy = sum(o.right for o in outcomes) / len(outcomes)
            gaps = [interval(pooled_gap([seeds])) for seeds in by_family.values()]
            average = interval(pooled_gap(list(by_family.values())))
            first = [name, f"{share:.0%}", f"{cloud_share(outcomes):.1%}", f"{accuracy:.1%}"]
            lines += line([*first, *gaps, f"**{average}**"])
    return lines


def difference_table(found: Outcomes, names: Sequence[str], plan: Plan) -> list[str]:
    """Points of accuracy above each rival at equal share."""
    families = list(dict.fromkeys(outcome.family for outcome in found[EDGE]))
    lines = line(["above", "share", *families, "average"], head=True)
    for rival, share in product(RIVALS, plan.shares):
        by_family = seeds_of(found, names, share, Cell(rival, share))
        cells = [interval(pooled_difference([seeds])) for seeds in by_family.values()]
        average = interval(pooled_difference(list(by_family.values())))
        lines += line([rival, f"{share:.0%}", *cells, f"**{average}**"])
    return lines


def smallest_share(found: Outcomes, cells: Sequence[str], plan: Plan, wanted: float = 0.9) -> str:
    """Where the gap recovered reaches `wanted`, between the shares that were realised."""
    gaps, shares = [0.0], [0.0]
    for share in plan.shares:
        gaps.append(pooled_gap(list(seeds_of(found, cells, share, EDGE).values()))[0])
        shares.append(cloud_share([o for cell in cells for o in found[Cell(cell, share)]]))
    above = next((i for i, gap in enumerate(gaps) if gap >= wanted), None)
    if above is None:
        return f"not by {plan.shares[-1]:.0%} ({max(gaps):.0%} of the gap)"
    pair = slice(above - 1, above + 1)
    return f"{np.interp(wanted, gaps[pair], shares[pair]):.1%}"


def compare(label: str, inputs: tuple[Input, ...], seeds: int, plan: Plan) -> list[str]:
    prepare([label], plan)
    variants = [Variant(label, inputs, seed) for seed in range(seeds)]
    found = run([EDGE.system, *variants, *RIVALS], plan)
    names = [variant.name for variant in variants]
    systems = {f"trained ({label})": names} | {rival: [rival] for rival in RIVALS}
    lines = ["", *gap_table(found, systems, plan), "", *difference_table(found, names, plan), ""]
    lines += line(["router", "smallest cloud share that recovers 90%"], head=True)
    for name, cells in systems.items():
        lines += line([name, smallest_share(found, cells, plan)])
    return lines


def each_family(label: str, inputs: tuple[Input, ...], seeds: int, plan: Plan) -> list[str]:
    """Every router at its own best: thresholds of the family, so that all spend alike there."""
    prepare([label], plan)
    variants = [Variant(label, inputs, seed) for seed in range(seeds)]
    names = [variant.name for variant in variants]
    head = ["family", "asked", "trained: realised", "gap recovered, %"]
    for rival in FAMILY_RIVALS:
        head += [f"{rival}: realised", f"gap recovered by {rival}, %", f"points above {rival}"]
    lines = ["", *line(head, head=True)]
    for family in pocketqa("test").families:
        alone = plan._replace(family=family)
        found = run([EDGE.system, *variants, *FAMILY_RIVALS], alone)
        for share in plan.shares:
            trained = [o for name in names for o in found[Cell(name, share)]]
            seeds_found = seeds_of(found, names, share, EDGE)[family]
            cells = [family, f"{share:.0%}", f"{cloud_share(trained):.1%}"]
            cells.append(interval(pooled_gap([seeds_found])))
            for rival in FAMILY_RIVALS:
                cell = Cell(rival, share)
                own = seeds_of(found, [rival], share, EDGE)[family]
                against = seeds_of(found, names, share, cell)[family]
                cells += [f"{cloud_share(found[cell]):.1%}", interval(pooled_gap([own]))]
                cells.append(interval(pooled_difference([against])))
            lines += line(cells)
    return lines


def ablation(plan: Plan) -> list[str]:
    prepare(LABELS, plan)
    variants = [Variant(label, inputs, 0) for label, inputs in product(LABELS, INPUTS)]
    found = run([EDGE.system, *variants], plan)
    lines: list[str] = []
    for share in plan.shares:
        lines += ["", f"Gap recovered when {share:.0%} is asked for, %:", ""]
        lines += line(["inputs", *LABELS], head=True)
        for inputs in INPUTS:
            cells = [
                interval(pooled_gap(list(seeds_of(found, [name], share, EDGE).values())))
                for name in (Variant(label, inputs, 0).name for label in LABELS)
            ]
            lines += line([" + ".join(inputs), *cells])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/trained_routers"))
    parser.add_argument("--ablation", action="store_true", help="labels x inputs, one seed")
    parser.add_argument(
        "--each-family", action="store_true", help="thresholds set for each family by itself"
    )
    parser.add_argument("--label", choices=LABELS, default="value")
    parser.add_argument("--inputs", nargs="+", default=DEFAULT)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train", type=int, default=4500, help="questions to train on")
    parser.add_argument("--questions", type=int, default=300, help="test questions of each family")
    parser.add_argument("--calibration", type=int, default=450, help="to set thresholds with")
    parser.add_argument("--shares", type=float, nargs="+")
    options = parser.parse_args()
    usual = (0.03,) if options.ablation else (0.02, 0.03, 0.05) if options.each_family else SHARES
    shares = tuple(options.shares or usual)
    plan = Plan(options.work, options.train, options.calibration, options.questions, shares)
    began = time.monotonic()
    if options.ablation:
        lines = ablation(plan)
    elif options.each_family:
        lines = each_family(options.label, tuple(options.inputs), options.seeds, plan)
    else:
        lines = compare(options.label, tuple(options.inputs), options.seeds, plan)
    print("\n".join(lines))
    print(
        f"\n{options.questions} test questions of each family, {options.calibration} others to set "
        f"thresholds, {options.train} to train on; in brackets 95% intervals."
    )
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
