"""A store of results: JSON Lines files that only grow, so that an interrupted run can resume."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

import msgspec

from edgewise.errors import UsageError
from edgewise_lab.evaluation.systems import Outcome
from edgewise_lab.evaluation.tasks.base import Question

MANIFEST = "manifest.json"

Kind = TypeVar("Kind", bound=msgspec.Struct)


def lock_folder(folder: Path, manifest: Mapping[str, object]) -> None:
    """Create `folder` with a file of its `manifest`: what its results depend on, such as models.

    Raises `UsageError` if the folder has a different manifest or cannot be used.
    """
    described = msgspec.json.format(msgspec.json.encode(manifest))
    path, problem = folder / MANIFEST, None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # Under another name first: a manifest that is there is whole.
            partial = path.with_suffix(".partial")
            partial.write_bytes(described)
            partial.replace(path)
        elif path.read_bytes() != described:
            problem = "holds results of other models, questions or settings"
    except OSError as error:
        problem = f"cannot be used: {error.strerror}"
    if problem:
        raise UsageError(f"{str(folder)!r} {problem}", hint="name another folder", setting="out")


def read(path: Path, kind: type[Kind]) -> list[Kind]:
    """Return the records of a JSON Lines file; none if there is no file.

    A last line that was cut off is removed from it. Raises `UsageError` for a damaged file.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        # Not rewritten: a crash in between would lose what is whole.
        os.truncate(path, len(whole))
    try:
        return [msgspec.json.decode(line, type=kind) for line in whole.splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} is damaged ({error})", hint="remove it") from error


def append(path: Path, line: msgspec.Struct) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


OUTCOMES, THRESHOLDS = "outcomes.jsonl", "thresholds.jsonl"


class Cell(msgspec.Struct, frozen=True):
    """A system at one target cloud share (None if it has none): the key of results in a `Store`."""

    system: str
    share: float | None = None


class _Key(msgspec.Struct, frozen=True):
    cell: Cell
    router: str


class _Line(msgspec.Struct, frozen=True):
    key: _Key
    outcome: Outcome


class _Threshold(msgspec.Struct, frozen=True):
    key: _Key
    threshold: float


class Store:
    """Outcomes and thresholds of an evaluation, kept in a folder or only in memory.

    In all methods `router` is a digest of a system's router ("" without one): a retrained router,
    or another of the same name, has outcomes of its own.
    """

    def __init__(self, folder: Path | None, manifest: Mapping[str, object]) -> None:
        """Read what is stored in `folder`; `UsageError` if damaged or of another manifest."""
        self._folder = folder
        self._outcomes: dict[_Key, dict[str, Outcome]] = {}
        self._thresholds: dict[_Key, float] = {}
        if folder is not None:
            lock_folder(folder, manifest)
            for line in read(folder / OUTCOMES, _Line):
                self._keep(line)
            for line in read(folder / THRESHOLDS, _Threshold):
                self._thresholds[line.key] = line.threshold

    def add(self, cell: Cell, outcome: Outcome, router: str = "") -> None:
        line = _Line(_Key(cell, router), outcome)
        self._append(OUTCOMES, line)
        self._keep(line)

    def get(self, cell: Cell, question: Question, router: str = "") -> Outcome | None:
        return self._outcomes.get(_Key(cell, router), {}).get(question.id)

    def last(self, cell: Cell, router: str = "") -> Outcome | None:
        """Return the outcome added last under `cell` and `router`; None if there is none."""
        return next(reversed(self._outcomes.get(_Key(cell, router), {}).values()), None)

    def set_threshold(self, cell: Cell, threshold: float, router: str = "") -> None:
        line = _Threshold(_Key(cell, router), threshold)
        self._append(THRESHOLDS, line)
        self._thresholds[line.key] = threshold

    def threshold(self, cell: Cell, router: str = "") -> float | None:
        return self._thresholds.get(_Key(cell, router))

    def _keep(self, line: _Line) -> None:
        self._outcomes.setdefault(line.key, {})[line.outcome.question] = line.outcome

    def _append(self, name: str, line: msgspec.Struct) -> None:
        if self._folder is not None:
            append(self._folder / name, line)


def run(
    cell: Cell,
    answer: Callable[[Question], Outcome],
    questions: Sequence[Question],
    store: Store,
    done: Callable[[], None] = lambda: None,
    *,
    router: str = "",
    settle: Callable[[Outcome], Outcome] = lambda outcome: outcome,
    workers: int = 1,
) -> list[Outcome]:
    """Answer all questions with one system and return the outcomes in the questions' order.

    `answer` is called, in `workers` threads, for each question without an outcome in `store` under
    `cell` and `router` (a digest). What `settle` returns for each outcome, one at a time, is
    stored. `done` is called for each question. An error of `answer` is raised; what was stored
    before it stays.
    """
    missing = [one for one in questions if store.get(cell, one, router) is None]
    for _ in range(len(questions) - len(missing)):
        done()
    lock = threading.Lock()

    def keep(question: Question) -> None:
        outcome = answer(question)
        with lock:
            store.add(cell, settle(outcome), router)

    side_by_side(keep, missing, workers, done)
    found = [store.get(cell, question, router) for question in questions]
    return [outcome for outcome in found if outcome is not None]


def side_by_side(
    work: Callable[[Question], None],
    questions: Sequence[Question],
    workers: int,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Call `work` for each question, in `workers` threads, and `done` after each, in the caller's.

    If a call fails, no more are begun, and the error is raised once those under way end. Ctrl-C
    does not wait for them: close the models to end them.
    """
    if workers == 1:
        for question in questions:
            work(question)
            done()
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="answer")
    try:
        for over in as_completed([pool.submit(work, question) for question in questions]):
            over.result()
            done()
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
