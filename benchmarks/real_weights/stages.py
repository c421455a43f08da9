"""The stages of a run: walks, training, answers. Each is kept in the run's folder.

What runs in other processes is here and not in the command, which they could not import.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from benchmarks.real_weights.questions import task, tasks
from benchmarks.real_weights.walks import ValueOrWalk, walk, walked
from benchmarks.real_weights.weights import cloud_file
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.routers.card import read_card
from edgewise.routers.mlp import Mlp
from edgewise.routers.named import identity_of
from edgewise_lab.evaluation.plan import ORACLE, Contender, Evaluation, contender_named, manifest
from edgewise_lab.evaluation.report import EDGE
from edgewise_lab.evaluation.store import Cell, Store
from edgewise_lab.evaluation.systems import Outcome
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.training.fit import Fitted, Recipe
from edgewise_lab.training.labels.published import Value
from edgewise_lab.training.router import Training

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
    walks: int | None
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
    begun = walked(asked.first(plan.walks))
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
    every = tasks("train", plan.tasks).first(plan.train).first(plan.walks)
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
        store = Store(
            plan.work / "answers" / name / system, manifest(asked, held_out, edge, cloud), Outcome
        )
        evaluation = Evaluation(asked, held_out, edge=edge, cloud=cloud, store=store)
        if system == EDGE.system:
            return evaluation.alone()
        if system == ORACLE.system:
            return evaluation.run([], [], [ORACLE.system])
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
