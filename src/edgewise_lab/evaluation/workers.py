"""Answers in several processes, each with the models of its own: the same ones, sooner.

What a system is travels as a `Job`, a few words; models, router and answers are a worker's.
"""

import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Literal, NamedTuple

from msgspec.structs import replace

from edgewise.errors import EdgewiseError
from edgewise.pair import Pair, open_models
from edgewise.parts import open_router
from edgewise.routers.base import Router
from edgewise.routers.named import router_named
from edgewise.settings import Settings
from edgewise_lab.evaluation.oracle import Oracle
from edgewise_lab.evaluation.systems import (
    CloudAlone,
    CommitPoint,
    Decoded,
    Outcome,
    System,
    edge_alone,
    paired,
)
from edgewise_lab.evaluation.tasks.base import Question

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
    """What all workers need: `routers` are what settings call a router, by the name shown."""

    settings: Settings
    routers: Mapping[str, str | None]
    max_tokens: int
    deadline: float


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
        """In the order of `questions`; raises what a worker did, or that one ended."""
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
