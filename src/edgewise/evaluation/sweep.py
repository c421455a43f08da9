"""Routers x cloud shares over a task, resumable, with the baselines they must beat."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from edgewise.evaluation.journal import append, claim, read
from edgewise.evaluation.systems import Outcome, System
from edgewise.evaluation.tasks.base import Question

OUTCOMES, THRESHOLDS = "outcomes.jsonl", "thresholds.jsonl"


class Cell(msgspec.Struct, frozen=True):
    """One system of a sweep; `share` is the cloud share asked for, None where none is."""

    system: str
    share: float | None = None


class _Line(msgspec.Struct, frozen=True):
    cell: Cell
    outcome: Outcome


class _Threshold(msgspec.Struct, frozen=True):
    cell: Cell
    threshold: float


class Store:
    """What is done. In a folder, a later run with the same manifest goes on from there."""

    def __init__(self, folder: Path | None, manifest: dict[str, object]) -> None:
        """`manifest` is what the outcomes depend on: models, task, settings.

        Raises `UsageError` where the folder holds outcomes of something else.
        """
        self._folder = folder
        self._outcomes: dict[Cell, dict[str, Outcome]] = {}
        self._thresholds: dict[Cell, float] = {}
        if folder is not None:
            claim(folder, manifest)
            for line in read(folder / OUTCOMES, _Line):
                self._keep(line)
            for line in read(folder / THRESHOLDS, _Threshold):
                self._thresholds[line.cell] = line.threshold

    def add(self, cell: Cell, outcome: Outcome) -> None:
        """Keep an outcome."""
        line = _Line(cell, outcome)
        self._append(OUTCOMES, line)
        self._keep(line)

    def get(self, cell: Cell, question: Question) -> Outcome | None:
        """The outcome of an earlier run."""
        return self._outcomes.get(cell, {}).get(question.id)

    def set_threshold(self, cell: Cell, threshold: float) -> None:
        """Keep a calibrated threshold."""
        self._append(THRESHOLDS, _Threshold(cell, threshold))
        self._thresholds[cell] = threshold

    def threshold(self, cell: Cell) -> float | None:
        """The threshold of an earlier run."""
        return self._thresholds.get(cell)

    def _keep(self, line: _Line) -> None:
        self._outcomes.setdefault(line.cell, {})[line.outcome.question] = line.outcome

    def _append(self, name: str, line: msgspec.Struct) -> None:
        if self._folder is not None:
            append(self._folder / name, line)


def run(
    cell: Cell,
    system: System,
    questions: Sequence[Question],
    store: Store,
    done: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Every question's outcome; `done` is called for each, those of an earlier run included."""
    found: list[Outcome] = []
    for question in questions:
        outcome = store.get(cell, question)
        if outcome is None:
            outcome = system.answer(question)
            store.add(cell, outcome)
        found.append(outcome)
        done()
    return found
