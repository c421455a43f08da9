"""Streams of answers that routers learn from, and what these routers are worth after them."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, closing
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from benchmarks.routers import plan as plans
from benchmarks.routers import trainings
from benchmarks.routers.gates import Plain
from benchmarks.routers.online import (
    Habits,
    Inputs,
    Logistic,
    Online,
    Signals,
    Standardised,
    Stream,
)
from benchmarks.routers.plan import Entry, Plan
from benchmarks.routers.thresholds import search
from benchmarks.routers.tree import NEVER, Models, Scorer, Tree
from edgewise.edge.base import EdgeModel
from edgewise.routers.card import read_card
from edgewise.routers.constant import Constant
from edgewise.routers.named import router_of
from edgewise_lab.evaluation.journal import append, read
from edgewise_lab.evaluation.systems import CloudAlone, Outcome, cloud_share
from edgewise_lab.evaluation.tasks.base import Question

LABEL = "value"
EDGE, CLOUD = "edge", "cloud"
UNTRAINED = ("entropy", plans.TOP_ENTROPY)

SIGNALS, INPUTS = "signals", "inputs"
METHODS = (SIGNALS, INPUTS)
"""Weighed beside the trained score: untrained scores, or the trained router's own inputs."""


class Learner(NamedTuple):
    """A router that learns from the questions of some families of a split."""

    base: Entry
    split: str
    families: tuple[str, ...]
    method: str

    @property
    def key(self) -> str:
        return "|".join((self.base.key, self.split, ",".join(self.families), self.method))


class Learnt(msgspec.Struct, frozen=True):
    """A learner's weights at the end of its stream, and what the stream spent."""

    key: str
    weights: tuple[float, ...]
    share: float
    consults: int
    changed: int


class Judged(msgspec.Struct, frozen=True):
    """One row's answers to the later half, in order; `row` is a learner's or an entry's key."""

    row: str
    threshold: float
    outcomes: tuple[Outcome, ...]


class Row(NamedTuple):
    """What is judged: an entry as it is, or a learner."""

    entry: Entry
    learner: Learner | None = None

    @property
    def key(self) -> str:
        return self.entry.key if self.learner is None else self.learner.key


class Run(NamedTuple):
    """A plan, how streams are learnt from, and where that is kept."""

    plan: Plan
    habits: Habits
    folder: Path

    def part(self, split: str, family: str, *, later: bool) -> list[Question]:
        """A half of a family's questions: the earlier to learn from, the later to be judged by."""
        own = [q for q in self.plan.task(split).questions if q.family == family]
        half = len(own) // 2
        return own[half:] if later else own[:half]

    def stream(self, split: str) -> list[Question]:
        """The earlier halves, the families in turn."""
        earlier = {q.id for f in self.families(split) for q in self.part(split, f, later=False)}
        return [q for q in self.plan.task(split).questions if q.id in earlier]

    def families(self, split: str) -> tuple[str, ...]:
        return self.plan.task(split).families


def learners(run: Run, splits: Sequence[str]) -> list[Learner]:
    """All streams.

    Ordinary questions: by a router that knows all families, and by those that lack one, which
    sees its stream alone or all. Shifted ones: by a router that knows all families.
    """
    found: list[Learner] = []
    for split in splits:
        every = run.families(split)
        for seed in range(run.plan.seeds):
            streams = [("", every)]
            if split == "test":
                streams += [(family, (family,)) for family in every]
                streams += [(family, every) for family in every]
            found += [
                Learner(Entry(LABEL, seed, without), split, families, method)
                for without, families in streams
                for method in METHODS
            ]
    return found


def rows(run: Run, split: str, family: str, every: Sequence[Learner]) -> list[Row]:
    """What is judged by a family's questions."""
    entries = [Entry(LABEL, seed) for seed in range(run.plan.seeds)]
    if split == "test":
        entries += [e._replace(without=f) for e in entries for f in run.families(split)]
    entries += [Entry(name) for name in UNTRAINED]
    own = [one for one in every if one.split == split and family in one.families]
    return [*map(Row, entries), *(Row(one.base, one) for one in own)]


def learn_all(run: Run, every: Sequence[Learner]) -> Iterator[dict[str, Learnt]]:
    """A process for each split and seed; yields what is known after each."""
    path = run.folder / "learnt.jsonl"
    known = {line.key: line for line in read(path, Learnt)}
    yield known
    jobs: dict[tuple[str, int], list[Learner]] = {}
    for one in every:
        if one.key not in known:
            jobs.setdefault((one.split, one.base.seed), []).append(one)
    with _pool() as pool:
        for future in as_completed([pool.submit(learn, run, job) for job in jobs.values()]):
            for line in future.result():
                append(path, line)
                known[line.key] = line
            yield known


def learn(run: Run, own: Sequence[Learner]) -> list[Learnt]:
    """Learners of one split, question by question: their answers have trees in common."""
    with ExitStack() as stack:
        edge, cloud = trainings.opened(stack, slots=4)
        longest = run.plan.task(own[0].split).max_tokens
        models = stack.enter_context(closing(Models(edge, cloud.model, longest)))
        inputs = _Inputs(run.plan)
        streams: dict[Learner, Stream] = {}
        for one in own:
            seen = inputs.of(one.base, one.method)
            streams[one] = Stream(Online(seen, seen.start()), run.habits, one.base.seed)
        answers: dict[Learner, list[Outcome]] = {one: [] for one in own}
        for question in run.stream(own[0].split):
            tree = Tree(question, models)
            for one in own:
                if question.family in one.families:
                    answers[one].append(streams[one].answer(tree))
            inputs.forget()
    return [
        Learnt(
            one.key,
            tuple(streams[one].router.learnt.mean.tolist()),
            cloud_share(answers[one]),
            sum(outcome.consults for outcome in answers[one]),
            sum(outcome.changed for outcome in answers[one]),
        )
        for one in own
    ]


def judge_all(
    run: Run, splits: Sequence[str], every: Sequence[Learner], known: dict[str, Learnt]
) -> Iterator[tuple[str, str]]:
    """A process for each split and family; yields each that is done."""
    with _pool() as pool:
        jobs = {
            pool.submit(judge, run, split, family, rows(run, split, family, every), known): (
                split,
                family,
            )
            for split in splits
            for family in run.families(split)
        }
        for future in as_completed(jobs):
            future.result()
            yield jobs[future]


def judge(
    run: Run, split: str, family: str, wanted: Sequence[Row], known: dict[str, Learnt]
) -> None:
    """The later half of a family's questions by all rows, each at the threshold for the share."""
    path = judged_path(run, split, family)
    done = {line.row for line in read(path, Judged)}
    left = [row for row in wanted if row.key not in done]
    if not left and {EDGE, CLOUD} <= done:
        return
    with ExitStack() as stack:
        edge, cloud = trainings.opened(stack, slots=4)
        longest = run.plan.task(split).max_tokens
        models = stack.enter_context(closing(Models(edge, cloud.model, longest)))
        questions = run.part(split, family, later=True)
        trees = [Tree(question, models) for question in questions]
        held = trees
        if split == "test":
            every = run.plan.task("calibration").questions
            held = [Tree(q, models) for q in every if q.family == family]
        alone = CloudAlone(cloud, edge.tokenizer, longest)
        if EDGE not in done:
            never = Plain(Constant(0.0))
            _keep(path, EDGE, NEVER, [tree.walk(EDGE, never, NEVER) for tree in trees])
        if CLOUD not in done:
            _keep(path, CLOUD, 0.0, [alone.answer(question) for question in questions])
        inputs = _Inputs(run.plan)
        for row in left:
            scorer = _scorer(row, run, inputs, known, edge)
            threshold = _threshold(row.key, scorer, held, run.plan.shares[0])
            found = [tree.walk(row.key, scorer, threshold) for tree in trees]
            _keep(path, row.key, threshold, found)


def judged(run: Run, split: str, family: str) -> dict[str, Judged]:
    """What was found."""
    return {line.row: line for line in read(judged_path(run, split, family), Judged)}


def judged_path(run: Run, split: str, family: str) -> Path:
    return run.folder / f"judged-{split}-{family}.jsonl"


def digest(run_parts: dict[str, object]) -> str:
    """Names a folder by what its contents depend on."""
    return hashlib.sha256(msgspec.json.encode(run_parts)).hexdigest()[:12]


class _Inputs:
    """What learners see, computed once for all that have a base and a method's inputs in common."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[tuple[Entry, str], Inputs] = {}

    def of(self, base: Entry, method: str) -> Inputs:
        if (base, method) not in self._known:
            folder = trainings.folder_of(base, self._plan)
            card = read_card(folder)
            more = Signals() if method == SIGNALS else Standardised(card, folder)
            self._known[base, method] = Inputs(router_of(card, folder), more)
        return self._known[base, method]

    def forget(self) -> None:
        """The steps of a question that is over."""
        for one in self._known.values():
            one.forget()


def _scorer(
    row: Row, run: Run, inputs: _Inputs, known: dict[str, Learnt], edge: EdgeModel
) -> Scorer:
    if row.learner is None:
        return trainings.scorer(row.entry, run.plan, edge)
    weights = np.array(known[row.key].weights)
    seen = inputs.of(row.entry, row.learner.method)
    return Online(seen, Logistic(weights, np.zeros_like(weights)))


def _threshold(name: str, scorer: Scorer, held: Sequence[Tree], share: float) -> float:
    scores = [score for tree in held for score in tree.root.scores(name, scorer)]
    running = search(share, scores)
    asked = next(running)
    while True:
        found = [tree.walk(name, scorer, asked) for tree in held]
        try:
            asked = running.send(cloud_share(found))
        except StopIteration as stop:
            return stop.value


def _keep(path: Path, row: str, threshold: float, found: Sequence[Outcome]) -> None:
    plain = tuple(replace(outcome, text="") for outcome in found)
    append(path, Judged(row, threshold, plain))


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(os.cpu_count() or 1, get_context("spawn"))
