"""Measured answers on disk: a file a system, so that processes side by side may share a folder."""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from edgewise_lab.bench.frontier.billing import MeasuredAnswer, MeasuredSystem
from edgewise_lab.evaluation.store import append, claim, read
from edgewise_lab.evaluation.tasks.base import Question

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
            claim(folder, manifest)

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
        # Names that read alike without their signs are told apart.
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
