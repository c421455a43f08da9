"""One process a core, each with a part of every set's questions and their trees of answers."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack, closing
from multiprocessing import get_context
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from benchmarks.routers.gates import Plain
from benchmarks.routers.plan import Entry, Plan, split_of
from benchmarks.routers.trainings import opened, scorer
from benchmarks.routers.tree import NEVER, Models, Scorer, Tree
from edgewise.routers.untrained import MaxProb
from edgewise_lab.evaluation.oracle import Oracle
from edgewise_lab.evaluation.systems import CloudAlone, CommitPoint, Outcome
from edgewise_lab.evaluation.tasks.base import Question

EDGE, CLOUD, COMMIT, ORACLE = "edge", "cloud", "commit point", "oracle"
OTHERS = (EDGE, CLOUD, COMMIT, ORACLE)
CHUNK = 10
"""Questions whose answers are kept at once."""


Scored = tuple[Entry, tuple[str, ...]]
"""A router, and the families of the questions."""


class Ask(NamedTuple):
    """A router at a threshold, on the questions of some families."""

    entry: Entry
    threshold: float
    families: tuple[str, ...]


class Answered(msgspec.Struct, frozen=True):
    """A question's outcomes by key, without their texts, and scores of whole-question routers."""

    question: str
    outcomes: dict[str, Outcome]
    queries: dict[str, float]


class Wanted(NamedTuple):
    """What to answer a family's questions with, by key: routers at thresholds, other systems."""

    pairs: dict[str, tuple[Entry, float]]
    others: tuple[str, ...]
    queries: dict[str, Entry]

    def without(self, known: Answered) -> "Wanted":
        """What is left to do."""
        return Wanted(
            {key: pair for key, pair in self.pairs.items() if key not in known.outcomes},
            tuple(key for key in self.others if key not in known.outcomes),
            {key: entry for key, entry in self.queries.items() if key not in known.queries},
        )


class Shards:
    """Processes that keep what they computed; each answers for its own part of the questions."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        count = os.cpu_count() or 1
        self._pools = [
            ProcessPoolExecutor(1, get_context("spawn"), _start, (plan, index, count))
            for index in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def scores(self, held: str, wanted: Sequence[Scored]) -> list[NDArray[np.float64]]:
        """Of each router all scores along the edge's own answers."""
        parts = self._everywhere(_scores, held, wanted)
        return [np.concatenate(each) for each in zip(*parts, strict=True)]

    def shares(self, held: str, asks: Sequence[Ask]) -> list[float]:
        """The cloud share that each threshold realises."""
        parts = self._everywhere(_counts, held, asks)
        totals = [tuple(map(sum, zip(*each, strict=True))) for each in zip(*parts, strict=True)]
        return [cloud / max(1, output) for output, cloud in totals]

    def answers(
        self, name: str, family: str, wanted: Wanted, known: Mapping[str, Answered]
    ) -> Iterator[list[Answered]]:
        """What is not known yet, some questions at a time."""
        futures: list[Future[list[Answered]]] = []
        nothing = Answered("", {}, {})
        for index, pool in enumerate(self._pools):
            own = self._plan.task(split_of(name)).questions[index :: len(self._pools)]
            left = [
                (q.id, wanted.without(known.get(q.id, nothing))) for q in own if q.family == family
            ]
            jobs = [(question, job) for question, job in left if any(job)]
            for start in range(0, len(jobs), CHUNK):
                futures.append(pool.submit(_answers, name, jobs[start : start + CHUNK]))
        for future in as_completed(futures):
            yield future.result()

    def forget(self) -> None:
        """Drop all trees."""
        self._everywhere(_forget)

    def _everywhere(self, function: Callable[..., Any], *given: object) -> list[Any]:
        futures = [pool.submit(function, *given) for pool in self._pools]
        return [future.result() for future in futures]


class _Here:
    """This process's part."""

    def __init__(self, plan: Plan, index: int, count: int) -> None:
        self.plan, self.index, self.count = plan, index, count
        stack = ExitStack()
        self.edge, self.cloud = opened(stack, slots=4)
        self.longest = plan.task("test").max_tokens
        self.models = Models(self.edge, self.cloud.model, self.longest)
        self.oracle = stack.enter_context(
            closing(Oracle(self.edge, self.cloud.model, self.longest))
        )
        self.scorers: dict[Entry, Scorer] = {}
        self.questions: dict[str, list[Question]] = {}
        self.trees: dict[str, Tree] = {}

    def own(self, held: str, families: Sequence[str] | None = None) -> list[Question]:
        split = split_of(held)
        if split not in self.questions:
            every = self.plan.task(split).questions
            self.questions[split] = list(every[self.index :: self.count])
        return [q for q in self.questions[split] if families is None or q.family in families]

    def tree(self, question: Question) -> Tree:
        if question.id not in self.trees:
            self.trees[question.id] = Tree(question, self.models)
        return self.trees[question.id]

    def scorer(self, entry: Entry) -> Scorer:
        if entry not in self.scorers:
            self.scorers[entry] = scorer(entry, self.plan, self.edge)
        return self.scorers[entry]

    def walk(self, tree: Tree, entry: Entry, threshold: float) -> Outcome:
        return tree.walk(entry.key, self.scorer(entry), threshold)

    def other(self, name: str, tree: Tree) -> Outcome:
        """One of the models alone, or what there is one of."""
        question = tree.question
        if name == CLOUD:
            return CloudAlone(self.cloud, self.edge.tokenizer, self.longest).answer(question)
        if name == ORACLE:
            return self.oracle.answer(question)
        if name == COMMIT and question.choices:
            return CommitPoint(self.edge, self.cloud, self.longest).answer(question)
        sure = Plain(MaxProb())
        scores = tree.root.scores("max-prob", sure)
        edge = tree.walk("max-prob", sure, NEVER)
        return replace(edge, uncertainty=sum(scores) / max(1, len(scores)))


_here: list[_Here] = []


def _start(plan: Plan, index: int, count: int) -> None:
    _here.append(_Here(plan, index, count))


def _scores(held: str, wanted: Sequence[Scored]) -> list[NDArray[np.float64]]:
    (here,) = _here
    return [
        np.array(
            [
                score
                for question in here.own(held, families)
                for score in here.tree(question).root.scores(entry.key, here.scorer(entry))
            ]
        )
        for entry, families in wanted
    ]


def _counts(held: str, asks: Sequence[Ask]) -> list[tuple[int, int]]:
    (here,) = _here
    found: list[tuple[int, int]] = []
    for entry, threshold, families in asks:
        own = [here.walk(here.tree(q), entry, threshold) for q in here.own(held, families)]
        found.append((sum(o.output_tokens for o in own), sum(o.cloud_tokens for o in own)))
    return found


def _answers(name: str, jobs: Sequence[tuple[str, Wanted]]) -> list[Answered]:
    """A question's tree is dropped with its last answer."""
    (here,) = _here
    by_id = {question.id: question for question in here.own(name)}
    found: list[Answered] = []
    for identity, wanted in jobs:
        tree = here.tree(by_id[identity])
        outcomes = {key: here.walk(tree, *pair) for key, pair in wanted.pairs.items()}
        outcomes |= {key: here.other(key, tree) for key in wanted.others}
        queries = {
            key: here.scorer(entry).score(tree.root.steps[0], ())
            for key, entry in wanted.queries.items()
        }
        plain = {key: replace(outcome, text="") for key, outcome in outcomes.items()}
        found.append(Answered(identity, plain, queries))
        del here.trees[identity]
    return found


def _forget() -> None:
    (here,) = _here
    here.trees.clear()
