"""Every system over one pair, ready to answer."""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.routers.base import Router
from edgewise.testing.link import Link
from edgewise_lab.bench.frontier.billing import (
    EngineTime,
    MeasuredAnswer,
    MeasuredSystem,
    RecordedCloud,
)
from edgewise_lab.bench.frontier.systems import (
    Streamed,
    Timed,
    TimedCommitPoint,
    pair_policy,
    timed_edge,
)
from edgewise_lab.bench.pace import UNPACED, LateCloud, Pace, PacedEdge
from edgewise_lab.evaluation.store import append, lock_folder, read
from edgewise_lab.evaluation.tasks.base import Question

PLACE_NOTE = "its place was found before, by an answer that is not counted"


class PairSystems:
    """Makes systems of an edge model and a checked cloud, each with a pace and a count of its own.

    `close` gives their connections back; the models stay their owner's.
    """

    def __init__(
        self,
        edge: EdgeModel,
        cloud: CloudModel,
        max_tokens: int,
        *,
        pace: Pace = UNPACED,
        link: Link | None = None,
        key: str | None = None,
        seconds: EngineTime | None = None,
        slowed: bool = False,
    ) -> None:
        """`cloud` is behind `link`, where there is one; `key` is what it is asked with.

        `seconds` tells an engine's time instead of its meter; with `slowed` the cloud is not there
        already at that pace, and is slowed down to it. Raises `UsageError` for a cloud of another
        vocabulary.
        """
        if cloud.boundaries is not None:
            raise UsageError(
                "The frontier compares models of one vocabulary",
                hint="choose two models of one family",
                setting="cloud",
            )
        self._model, self._pace, self._max_tokens = edge, pace, max_tokens
        self._cloud, self._link, self._key, self._seconds = cloud, link, key, seconds
        # What slows it down stands for the model behind it.
        self._asked = LateCloud(cloud, seconds) if slowed and seconds else cloud
        self._streams: list[Streamed] = []

    def close(self) -> None:
        """Let go of connections."""
        for stream in self._streams:
            stream.close()

    def edge(self) -> MeasuredSystem:
        """The edge alone."""
        return timed_edge(self._paced(), self._max_tokens)

    def larger_edge(self, model: EdgeModel, pace: Pace) -> MeasuredSystem:
        """Another edge alone."""
        return timed_edge(PacedEdge(model, pace), self._max_tokens)

    def cloud(self) -> MeasuredSystem:
        """The cloud alone, streamed."""
        able = self._cloud.abilities
        stream = Streamed(
            self._cloud.name,
            self._model.tokenizer,
            self._max_tokens,
            model=None if able is None else able.model,
            key=self._key,
            link=self._link,
            seconds=self._seconds,
        )
        self._streams.append(stream)
        return stream

    def pair(self, router: Router, threshold: float, speculate: int) -> MeasuredSystem:
        """Both, by a router with a static threshold; without `speculate` it waits for consults."""
        return Timed(
            self._paced(),
            self._max_tokens,
            router=router,
            policy=pair_policy(threshold, speculate=speculate),
            cloud=self._recorded(),
            link=self._link,
        )

    def commit_point(self, speculate: int) -> MeasuredSystem:
        """One consult where a choice is first named."""
        return TimedCommitPoint(
            self._model,
            self._paced(),
            self._max_tokens,
            cloud=self._recorded(),
            speculate=speculate,
            link=self._link,
        )

    def _paced(self) -> PacedEdge:
        return PacedEdge(self._model, self._pace)

    def _recorded(self) -> RecordedCloud:
        return RecordedCloud(self._asked, self._seconds)


def has_choices(questions: Sequence[Question]) -> bool:
    """Whether any question has a commit point."""
    return any(question.choices for question in questions)


_PLAIN = re.compile(r"[^A-Za-z0-9.%]+")


class _Threshold(msgspec.Struct, frozen=True):
    threshold: float


class MeasuredStore:
    """What is done. In a folder, a later run with the same manifest goes on from there."""

    def __init__(self, folder: Path | None, manifest: Mapping[str, object]) -> None:
        """`manifest` is what all answers depend on: models, questions, link, paces.

        Raises `UsageError` where the folder holds answers of something else.
        """
        self._folder = folder
        self._kept: dict[str, list[MeasuredAnswer]] = {}
        self._thresholds: dict[str, float] = {}
        if folder is not None:
            lock_folder(folder, manifest)

    def answers(self, system: str) -> dict[str, MeasuredAnswer]:
        """By question, those of earlier runs and of this one."""
        if system not in self._kept:
            path = self._path(system, "answers")
            self._kept[system] = [] if path is None else read(path, MeasuredAnswer)
        return {answer.outcome.question: answer for answer in self._kept[system]}

    def add(self, system: str, answer: MeasuredAnswer) -> None:
        """Keep an answer."""
        path = self._path(system, "answers")
        if path is not None:
            append(path, answer)
        self._kept.setdefault(system, []).append(answer)

    def threshold(self, name: str, find: Callable[[], float]) -> float:
        """The threshold of an earlier run; else the one that is found now is kept."""
        path = self._path(name, "threshold")
        if name not in self._thresholds:
            known = [] if path is None else read(path, _Threshold)
            if not known:
                known = [_Threshold(find())]
                if path is not None:
                    append(path, known[0])
            self._thresholds[name] = known[0].threshold
        return self._thresholds[name]

    def _path(self, name: str, what: str) -> Path | None:
        if self._folder is None:
            return None
        # Names that read alike without their signs are kept apart.
        plain = f"{_PLAIN.sub('-', name)}-{zlib.crc32(name.encode()):08x}"
        return self._folder / f"{plain}.{what}.jsonl"


def measure(
    name: str,
    system: Callable[[], MeasuredSystem],
    questions: Sequence[Question],
    store: MeasuredStore,
    done: Callable[[], None] = lambda: None,
) -> list[MeasuredAnswer]:
    """Every question's answer, in their order; `system` is made where one is missing.

    `done` is called for each, those of an earlier run included.
    """
    known = store.answers(name)
    made: MeasuredSystem | None = None
    found: list[MeasuredAnswer] = []
    for question in questions:
        answer = known.get(question.id)
        if answer is None:
            made = made or system()
            answer = made.answer(question)
            store.add(name, answer)
        found.append(answer)
        done()
    return found
