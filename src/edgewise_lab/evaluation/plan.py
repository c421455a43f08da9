"""An evaluation: which systems answer which questions, in this process or in several."""

import hashlib
import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.errors import EdgewiseError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.loop.verify import READS_ALONG
from edgewise.pair import Pair, open_models
from edgewise.parts import open_router
from edgewise.routers.base import Router
from edgewise.routers.card import RouterCard
from edgewise.routers.named import identity_named, router_named
from edgewise.settings import Settings
from edgewise_lab.evaluation.calibration import Calibrated, thresholds_for
from edgewise_lab.evaluation.oracle import Oracle
from edgewise_lab.evaluation.report import CLOUD, EDGE, SERVED, Figures, Row
from edgewise_lab.evaluation.store import Answers, Cell, Store, run
from edgewise_lab.evaluation.systems import (
    AsServed,
    CloudAlone,
    CommitPoint,
    Decoded,
    Outcome,
    System,
    cloud_identity,
    edge_alone,
    graded,
    paired,
    query_level,
    require_room,
)
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.grading import agreeing_task

MOST = 64
"""Workers of one evaluation."""

_AHEAD = 4
"""Questions handed out for each worker, so that none waits while another's is long."""


class Job(NamedTuple):
    """A system: which, its router by the name it is shown under, and the router's threshold."""

    system: Literal["edge", "cloud", "pair", "commit-point", "oracle"]
    router: str = ""
    threshold: float = 0.0


class Work(NamedTuple):
    """Parameters of all workers: `routers` are values of the setting, by the name shown."""

    settings: Settings
    routers: Mapping[str, str | None]
    max_tokens: int
    deadline: float | None


class Workers:
    """`count` processes; models are opened at a worker's first answer. A context manager.

    Without `threads` in the settings the cores are shared among the workers.
    """

    def __init__(self, work: Work, count: int) -> None:
        if work.settings.threads is None:
            work = work._replace(settings=replace(work.settings, threads=_threads(count)))
        context = multiprocessing.get_context("spawn")
        self._ahead = _AHEAD * count
        self._pool = ProcessPoolExecutor(count, context, _begin, (work,))
        # A process begins with each call while none waits. Ctrl-C is for this one, which ends them:
        # a worker that it ended first would look like one that was killed.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for _ in range(count):
                self._pool.submit(os.getpid)
        finally:
            signal.signal(signal.SIGINT, before)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # What they are at may take minutes, and nobody wants it any more.
            for child in multiprocessing.active_children():
                child.terminate()
        self._pool.shutdown()

    def answers(self, job: Job, questions: Sequence[Question]) -> Iterator[Outcome]:
        """Answers in the order of `questions`; raises what a worker did, or that one ended."""
        left = iter(questions)
        begun: deque[Future[Outcome]] = deque()
        try:
            while True:
                # No `map`: it cancels what waits, at which a pool that is ended at once stumbles.
                for question in islice(left, self._ahead - len(begun)):
                    begun.append(self._pool.submit(_answer, job, question))
                if not begun:
                    return
                yield begun.popleft().result()
        except BrokenProcessPool as broken:
            raise EdgewiseError(
                "A worker process ended before it had answered: it was killed, or had no memory",
                hint="run the command again, with fewer of them",
                setting="workers",
            ) from broken


class _Worker:
    """The models of this process, and the system that answered last."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._models: Pair | None = None
        self._last: tuple[Job, System] | None = None

    def answer(self, job: Job, question: Question) -> Outcome:
        if self._last is None or self._last[0] != job:
            self._close()
            self._last = job, self._system(job)
        return self._last[1].answer(question)

    def _system(self, job: Job) -> System:
        if self._models is None:
            self._models = open_models(self._work.settings)
        edge, cloud = self._models.both()
        tokens = self._work.max_tokens
        if job.system == "edge":
            return edge_alone(edge, tokens)
        if job.system == "cloud":
            return CloudAlone(cloud, edge.tokenizer, tokens)
        if job.system == "commit-point":
            return CommitPoint(edge, cloud, tokens)
        if job.system == "oracle":
            assert cloud.local is not None
            return Oracle(edge, cloud.local, tokens)
        router = self._router(job.router)
        decoder = paired(edge, router, job.threshold, cloud, deadline=self._work.deadline)
        return Decoded(decoder, tokens)

    def _router(self, name: str) -> Router:
        if name not in self._work.routers:
            return router_named(name)
        assert self._models is not None
        settings = replace(self._work.settings, router=self._work.routers[name])
        return open_router(settings, self._models.edge)[0]

    def _close(self) -> None:
        if self._last is not None and isinstance(self._last[1], Oracle):
            self._last[1].close()
        self._last = None


_worker: list[_Worker] = []


def _begin(work: Work) -> None:
    # The process that began this one says what there is to say.
    logging.disable()
    _worker.append(_Worker(work))


def _answer(job: Job, question: Question) -> Outcome:
    return _worker[0].answer(job, question)


def _threads(count: int) -> int:
    able: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    cores = len(able(0)) if able else os.cpu_count() or 1
    return max(1, cores // count)


VERIFY = "verify"
COMMIT_POINT, ORACLE, EXACT = Cell("commit-point"), Cell("oracle"), Cell("exact")
QUERY_LEVEL = "query-level"
SOME_COMMIT_POINTS = Cell("commit-point (choices)")
"""Name of the system if some questions have no choices: the edge alone answers those."""

BASELINES = ("random", "max-prob", "entropy", "margin")


class Contender(msgspec.Struct, frozen=True):
    """A router with what its card says, under the name that figures show.

    `identity` tells it from any other router (`router_identity`): a store on disk keeps its
    outcomes under that, and none without it. `served` are the policies that users get, by share.
    """

    name: str
    router: Router
    card: RouterCard | None = None
    identity: str | None = None
    served: Mapping[float, Policy] = {}

    def thresholds(
        self,
        shares: Sequence[float],
        find: Callable[[Sequence[float]], Mapping[float, Calibrated]],
        store: Store[Any] | None = None,
    ) -> dict[float, float]:
        """Thresholds by share: the card's, an earlier run's, or those of `find`, which it keeps."""
        store, identity = store or Store(None, {}, Outcome), self.identity or ""
        cells = {share: Cell(self.name, share) for share in shares}
        known = {share: self.card.threshold(share) if self.card else None for share in shares}
        for share, cell in cells.items():
            if known[share] is None:
                known[share] = store.threshold(cell, identity)
        lacking = [share for share in shares if known[share] is None]
        for share, point in find(lacking).items() if lacking else ():
            store.set_threshold(cells[share], point.threshold, identity)
            known[share] = point.threshold
        return {share: threshold for share, threshold in known.items() if threshold is not None}


def contender_named(name: str) -> Contender:
    """A router that needs no checkpoint. Raises `UsageError`."""
    return Contender(name, router_named(name), identity=identity_named(name))


class Evaluation:
    """A task, a pair, and what of it is done."""

    def __init__(
        self,
        task: Task,
        calibration: Task,
        *,
        edge: EdgeModel,
        cloud: CloudModel,
        store: Store[Outcome],
        deadline: float | None = None,
        done: Callable[[], None] = lambda: None,
        workers: Workers | None = None,
    ) -> None:
        """`deadline` in seconds a consult (None: as a `Policy`); `done` is called for each answer.

        `workers` answer instead of this process, but where thresholds are calibrated.

        Raises `ContextOverflow` for a question that leaves no room for an answer.
        """
        for asked in (task, calibration):
            require_room(asked, edge, cloud)
        self.task, self.calibration = task, calibration
        self.edge, self.cloud = edge, cloud
        self.deadline = deadline
        self.store, self._done, self._workers = store, done, workers

    def run(
        self, contenders: Sequence[Contender], shares: Sequence[float], *, baselines: bool
    ) -> dict[Cell, list[Outcome]]:
        """Outcomes of every system, in the order of the report."""
        found = self.alone()
        for contender in contenders:
            found |= self.served(contender)
            found |= self.pairs(contender, shares)
        if baselines:
            for name in _others(contenders):
                found |= self.pairs(contender_named(name), shares)
            for share in shares:
                found[Cell(QUERY_LEVEL, share)] = query_level(found[EDGE], found[CLOUD], share)
            found |= self.verified(shares) | self.bounds()
        return found

    def answers(
        self, contenders: Sequence[Contender], shares: Sequence[float], *, baselines: bool
    ) -> int:
        """Number of answers of a run."""
        routers = len(contenders)
        bounds = 0
        if baselines:
            routers += len(_others(contenders))
            bounds += any(question.choices for question in self.task.questions)
            bounds += self.cloud.local is not None
            bounds += (1 + len(shares)) * self.cloud.verifies
        served = sum(len(contender.served) for contender in contenders)
        return (2 + routers * len(shares) + served + bounds) * len(self.task.questions)

    def alone(self) -> dict[Cell, list[Outcome]]:
        """The edge model and the cloud model, each by itself.

        Where right answers are not known, the cloud's own take their place from here on.
        """
        tokens = self.task.max_tokens
        large = CloudAlone(self.cloud, self.edge.tokenizer, tokens)
        replies = self._cell(CLOUD, Job("cloud"), large)
        self.task = agreeing_task(self.task, {one.question: one.text for one in replies})
        cloud = [graded(*both) for both in zip(self.task.questions, replies, strict=True)]
        return {EDGE: self._cell(EDGE, Job("edge"), edge_alone(self.edge, tokens)), CLOUD: cloud}

    def served(self, contender: Contender) -> dict[Cell, list[Outcome]]:
        """A router as users get it. Answers depend on those before: some alone are worth nothing,
        so all are here, and all or none are kept."""
        found: dict[Cell, list[Outcome]] = {}
        store, router = self._store_of(contender), contender.identity or ""
        questions = self.task.questions
        for share, policy in contender.served.items():
            cell = Cell(contender.name + SERVED, share)
            decoder = Decoder(self.edge, router=contender.router, policy=policy, cloud=self.cloud)
            answers = partial(map, AsServed(decoder, self.task.max_tokens).answer)
            whole = all(store.get(cell, one, router) for one in questions)
            kept = store if whole else Store(None, {}, Outcome)
            found[cell] = run(cell, answers, questions, kept, self._done, router=router)
            for outcome in () if whole else found[cell]:
                store.add(cell, outcome, router)
        return found

    def verified(self, shares: Sequence[float]) -> dict[Cell, list[Outcome]]:
        """Verification as users get it with each share, and exact; nothing by a cloud without."""
        if not self.cloud.verifies:
            return {}
        policy = Policy(verify="on", on_cloud_error="raise", deadline=self.deadline)
        by_share = {share: replace(policy, cloud_share=share) for share in shares}
        found = self.served(Contender(VERIFY, READS_ALONG, identity=VERIFY, served=by_share))
        exact = replace(policy, verify="exact")
        decoder = Decoder(self.edge, router=READS_ALONG, policy=exact, cloud=self.cloud)
        answers = partial(map, Decoded(decoder, self.task.max_tokens).answer)
        found[EXACT] = run(EXACT, answers, self.task.questions, self.store, self._done)
        return found

    def pairs(self, contender: Contender, shares: Sequence[float]) -> dict[Cell, list[Outcome]]:
        """A router at every share; only what no card and no earlier run has is calibrated."""
        identity, store = contender.identity, self._store_of(contender)
        found: dict[Cell, list[Outcome]] = {}
        find = partial(
            thresholds_for,
            router=contender.router,
            task=self.calibration,
            edge=self.edge,
            cloud=self.cloud,
            deadline=self.deadline,
        )
        for share, threshold in contender.thresholds(shares, find, store).items():
            cell = Cell(contender.name, share)
            system = Decoded(
                paired(self.edge, contender.router, threshold, self.cloud, deadline=self.deadline),
                self.task.max_tokens,
            )
            answers = self._answers(Job("pair", contender.name, threshold), system)
            found[cell] = run(
                cell, answers, self.task.questions, store, self._done, router=identity or ""
            )
        return found

    def bounds(self) -> dict[Cell, list[Outcome]]:
        """Outcomes of one consult at the commit point, and of the oracle if the cloud is local."""
        tokens = self.task.max_tokens
        found: dict[Cell, list[Outcome]] = {}
        named = [bool(question.choices) for question in self.task.questions]
        if any(named):
            cell = COMMIT_POINT if all(named) else SOME_COMMIT_POINTS
            system = CommitPoint(self.edge, self.cloud, tokens)
            found[cell] = self._cell(cell, Job("commit-point"), system)
        if self.cloud.local is not None:
            with closing(Oracle(self.edge, self.cloud.local, tokens)) as oracle:
                found[ORACLE] = self._cell(ORACLE, Job("oracle"), oracle)
        return found

    def _cell(self, cell: Cell, job: Job, system: System) -> list[Outcome]:
        answers = self._answers(job, system)
        return run(cell, answers, self.task.questions, self.store, self._done)

    def _answers(self, job: Job, system: System) -> Answers[Outcome]:
        """Runs `system` here, or its `job` in the workers."""
        if self._workers is not None:
            return partial(self._workers.answers, job)
        return partial(map, system.answer)

    def _store_of(self, contender: Contender) -> Store[Outcome]:
        """The store of its outcomes; one that keeps nothing without an identity."""
        return Store(None, {}, Outcome) if contender.identity is None else self.store


def _others(contenders: Sequence[Contender]) -> list[str]:
    """Routers of the baselines that are no contenders themselves."""
    known = {contender.name for contender in contenders}
    return [name for name in BASELINES if name not in known]


def manifest(
    task: Task, calibration: Task, edge: EdgeModel, cloud: CloudModel
) -> dict[str, object]:
    """Hashes of everything that outcomes depend on; equal manifests may share a folder.

    `cloud` must have been checked: only then an engine says which model it serves.
    """
    digest = hashlib.sha256(msgspec.json.encode([task, calibration])).hexdigest()
    return {
        "format": 3,
        "task": task.name,
        "questions": digest,
        "edge": edge.fingerprint(),
        "cloud": cloud_identity(cloud),
    }


FAR = 0.25
"""A realised share this far from the one asked for (relative) is another one."""


AGREEMENT = (
    "The questions come without answers: right means here that an answer agrees with the cloud's "
    "own."
)


def warnings(task: Task, contenders: Sequence[Contender], table: Sequence[Row]) -> list[str]:
    """A sentence for each router that was made for other questions, or misses its share.

    A share is missed where all of its 95 % interval lies further off than `FAR`, so that few
    questions alone raise no alarm. Whole questions are sent within a share, not at one.
    """
    sentences = [] if task.known else [AGREEMENT]
    sentences += [_made_for_others(task, contender) for contender in contenders]
    figures = [row.overall for row in table]
    for system in dict.fromkeys(one.system for one in figures if one.system != QUERY_LEVEL):
        sentences.append(_missed([one for one in figures if one.system == system]))
    return [sentence for sentence in sentences if sentence]


def _made_for_others(task: Task, contender: Contender) -> str | None:
    card = contender.card
    if card is None:
        return None
    # "NAME, 4500 questions", as training writes it.
    for verb, made in (("trained", card.trained_on), ("calibrated", card.calibrated_on)):
        if made and made.rpartition(", ")[0] != task.name:
            return (
                f"The router {contender.name!r} was {verb} on {made}, not on {task.name}: its "
                "cloud share may miss the target here. edgewise tune sets thresholds for these, "
                "edgewise train makes a router."
            )
    return None


def _missed(points: Sequence[Figures]) -> str | None:
    off = [
        f"{one.cloud_share:.1%} where {one.cloud_share_asked:.0%} was asked for"
        for one in points
        if one.cloud_share_asked is not None and _is_far(one, one.cloud_share_asked)
    ]
    if not off:
        return None
    why = "its scores are spread otherwise here than where its thresholds were set"
    if points[0].system == VERIFY + SERVED:
        why = "its share holds over more answers than these"
    return f"{points[0].system} realised a cloud share of {', '.join(off)}: {why}."


def _is_far(figures: Figures, asked: float) -> bool:
    low, high = figures.cloud_share_interval
    return low > (1 + FAR) * asked or high < (1 - FAR) * asked
