"""Results on disk: JSON Lines that are only appended to, so that an interrupted run goes on."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from edgewise.errors import UsageError
from edgewise_lab.evaluation.tasks.base import Question

MANIFEST = "manifest.json"

Kind = TypeVar("Kind", bound=msgspec.Struct)


def lock_folder(folder: Path, manifest: Mapping[str, object]) -> None:
    """Make `folder` the place of what `manifest` describes: models, task, settings.

    Raises `UsageError` where it holds something else or cannot be written.
    """
    described = msgspec.json.format(msgspec.json.encode(manifest))
    path = folder / MANIFEST
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # Under another name first: a manifest that is there is whole.
            partial = path.with_suffix(".partial")
            partial.write_bytes(described)
            partial.replace(path)
        elif path.read_bytes() != described:
            raise UsageError(
                f"{str(folder)!r} holds results of other models, questions or settings",
                hint="name another folder",
                setting="out",
            )
    except OSError as error:
        raise UsageError(
            f"{str(folder)!r} cannot be used: {error.strerror}",
            hint="name another folder",
            setting="out",
        ) from error


def read(path: Path, kind: type[Kind]) -> list[Kind]:
    """Reads the complete lines; removes a truncated last line, so that appending goes on."""
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


class Answered(Protocol):
    """A stored answer."""

    @property
    def question(self) -> str: ...


Kept = TypeVar("Kept", bound=Answered)

OUTCOMES, THRESHOLDS = "outcomes.jsonl", "thresholds.jsonl"


class Cell(msgspec.Struct, frozen=True):
    """A system of a sweep; `share` is the cloud share asked for, None without one."""

    system: str
    share: float | None = None


class _Key(msgspec.Struct, frozen=True):
    """Key of outcomes: a cell's name is for people, `router` tells routers apart."""

    cell: Cell
    router: str


class _Line(msgspec.Struct, Generic[Kept], frozen=True):
    key: _Key
    outcome: Kept


class _Threshold(msgspec.Struct, frozen=True):
    key: _Key
    threshold: float


class Store(Generic[Kept]):
    """Stores outcomes and thresholds. With a folder, a later run with the same manifest resumes.

    `router` is always the digest of what a system's router is (`router_identity`), so that a
    router that was trained anew, or another one of its name, has outcomes of its own.
    """

    def __init__(
        self, folder: Path | None, manifest: Mapping[str, object], kind: type[Kept]
    ) -> None:
        """`manifest` describes what outcomes of this `kind` depend on: models and questions.

        Raises `UsageError` where the folder holds outcomes of something else.
        """
        self._folder = folder
        self._outcomes: dict[_Key, dict[str, Kept]] = {}
        self._thresholds: dict[_Key, float] = {}
        if folder is not None:
            lock_folder(folder, manifest)
            for line in read(folder / OUTCOMES, _Line[kind]):
                self._keep(line)
            for line in read(folder / THRESHOLDS, _Threshold):
                self._thresholds[line.key] = line.threshold

    def add(self, cell: Cell, outcome: Kept, router: str = "") -> None:
        line = _Line(_Key(cell, router), outcome)
        self._append(OUTCOMES, line)
        self._keep(line)

    def get(self, cell: Cell, question: Question, router: str = "") -> Kept | None:
        """The outcome of an earlier run."""
        return self._outcomes.get(_Key(cell, router), {}).get(question.id)

    def last(self, cell: Cell, router: str = "") -> Kept | None:
        """The outcome that was added last."""
        return next(reversed(self._outcomes.get(_Key(cell, router), {}).values()), None)

    def set_threshold(self, cell: Cell, threshold: float, router: str = "") -> None:
        line = _Threshold(_Key(cell, router), threshold)
        self._append(THRESHOLDS, line)
        self._thresholds[line.key] = threshold

    def threshold(self, cell: Cell, router: str = "") -> float | None:
        """The threshold of an earlier run."""
        return self._thresholds.get(_Key(cell, router))

    def _keep(self, line: _Line[Kept]) -> None:
        self._outcomes.setdefault(line.key, {})[line.outcome.question] = line.outcome

    def _append(self, name: str, line: msgspec.Struct) -> None:
        if self._folder is not None:
            append(self._folder / name, line)


def run(
    cell: Cell,
    answer: Callable[[Question], Kept],
    questions: Sequence[Question],
    store: Store[Kept],
    done: Callable[[], None] = lambda: None,
    *,
    router: str = "",
    settle: Callable[[Kept], Kept] = lambda outcome: outcome,
    workers: int = 1,
) -> list[Kept]:
    """Returns every question's outcome; `done` is called for each, stored ones included.

    `answer` is called with the questions that no earlier run has answered, by so many threads. An
    outcome is kept, as `settle` returns it, when it is there: one at a time.
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
    """Does the `work` of each question, by so many threads; `done` is called after each.

    If one fails those under way are waited for. Ctrl-C does not wait for them: whoever ends the
    program closes the models, which ends them.
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
