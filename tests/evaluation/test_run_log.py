"""Results on disk: only ever appended to, whole lines or none, kept as they come by threads."""

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.base import CloudModel
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeModel
from edgewise.errors import CloudUnavailable, UsageError
from edgewise.loop.policy import Policy
from edgewise.pair import open_models
from edgewise.routers.untrained import MaxProb
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import Failing, ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise_lab.evaluation.plan import PASSAGES, SYSTEMS, VERIFY, Contender, Evaluation
from edgewise_lab.evaluation.report import EDGE, SERVED
from edgewise_lab.evaluation.store import (
    MANIFEST,
    OUTCOMES,
    Cell,
    Store,
    append,
    lock_folder,
    read,
    run,
)
from edgewise_lab.evaluation.systems import Outcome
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.evaluation.outcomes import outcome


class Note(msgspec.Struct, frozen=True):
    """A line."""

    text: str


def filled(folder: Path, *texts: str) -> Path:
    path = folder / "notes.jsonl"
    for text in texts:
        append(path, Note(text))
    return path


@contextmanager
def full_disk() -> Iterator[None]:
    """Nothing can be written; what is there can be cut."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_cut_line_is_dropped_without_writing_the_others_again(tmp_path: Path) -> None:
    """A full disk, or a crash in the middle, must not cost what was whole."""
    path = filled(tmp_path, "a", "b")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"text": "c')
    inode = path.stat().st_ino
    with full_disk():
        assert read(path, Note) == [Note("a"), Note("b")]
    assert path.read_bytes() == whole
    assert path.stat().st_ino == inode
    append(path, Note("c"))
    assert read(path, Note) == [Note("a"), Note("b"), Note("c")]


@given(cut=st.integers(0, 200), texts=st.lists(st.text(max_size=8), min_size=1, max_size=6))
def test_cut_anywhere_a_run_log_holds_what_was_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int, texts: list[str]
) -> None:
    path = filled(tmp_path_factory.mktemp("log"), *texts)
    data = path.read_bytes()
    os.truncate(path, min(cut, len(data)))
    held = read(path, Note)
    assert held == [Note(text) for text in texts[: data[:cut].count(b"\n")]]
    append(path, Note("next"))
    assert read(path, Note) == [*held, Note("next")]


@pytest.mark.parametrize("line", [b"nonsense\n", b"{}\n", b'{"text": 1}\n', b'{"text": "\xff"}\n'])
def test_a_damaged_line_is_named_and_left_alone(tmp_path: Path, line: bytes) -> None:
    path = filled(tmp_path, "a")
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(UsageError, match=r"notes\.jsonl'"):
        read(path, Note)
    assert path.read_bytes().endswith(line)


def test_a_folder_belongs_to_what_claimed_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        lock_folder(folder, {"edge": "x"})
    for other in ({"edge": "y"}, {}, {"edge": "x", "more": 1}):
        with pytest.raises(UsageError, match="name another folder") as caught:
            lock_folder(folder, other)
        assert caught.value.setting == "out"
    # A claim that was cut claims nothing.
    with full_disk(), pytest.raises(UsageError, match="File too large"):
        lock_folder(tmp_path, {"edge": "x"})
    assert not (tmp_path / MANIFEST).exists()
    lock_folder(tmp_path, {"edge": "y"})
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        lock_folder(tmp_path / "file", {})


PATIENCE = 60.0
TASK = Task("t", tuple(Question(f"{i}", "f", f"Say {i}:", "x", "contains") for i in range(12)), 24)


def test_so_many_answer_at_a_time_and_the_order_is_that_of_the_questions() -> None:
    """Each waits for three others: with fewer threads none would come back."""
    together = threading.Barrier(4, timeout=PATIENCE)

    def answer(question: Question) -> Outcome:
        together.wait()
        return outcome(question.id)

    done: list[None] = []
    store = Store(None, {})
    found = run(EDGE, answer, TASK.questions, store, lambda: done.append(None), workers=4)
    assert [one.question for one in found] == [one.id for one in TASK.questions]
    assert len(done) == len(found)


def test_what_is_answered_while_another_is_under_way_is_on_disk(tmp_path: Path) -> None:
    store, going_on = Store(tmp_path, {}), threading.Event()
    lines: list[int] = []

    def answer(question: Question) -> Outcome:
        if question.id == "0":
            assert going_on.wait(PATIENCE)
        return outcome(question.id)

    def done() -> None:
        lines.append((tmp_path / OUTCOMES).read_bytes().count(b"\n"))
        if len(lines) == len(TASK.questions) - 1:
            going_on.set()

    run(EDGE, answer, TASK.questions, store, done, workers=2)
    assert all(count >= number for number, count in enumerate(lines, 1))


def test_one_that_fails_ends_them_all_and_those_under_way_are_kept() -> None:
    store, failing = Store(None, {}), threading.Barrier(2, timeout=PATIENCE)

    def answer(question: Question) -> Outcome:
        if question.id in ("0", "1"):
            failing.wait()
        if question.id == "0":
            raise CloudUnavailable("gone")
        return outcome(question.id)

    with pytest.raises(CloudUnavailable):
        run(EDGE, answer, TASK.questions, store, workers=2)
    assert store.get(EDGE, TASK.questions[0]) is None
    assert store.get(EDGE, TASK.questions[1]) is not None


def evaluation(
    edge: EdgeModel,
    cloud: CloudModel,
    folder: Path | None = None,
    workers: int = 1,
    task: Task = TASK,
) -> Evaluation:
    store = Store(folder, {"task": "t"})
    return Evaluation(task, task, edge=edge, cloud=cloud, store=store, workers=workers)


def texts(found: dict[Cell, list[Outcome]]) -> dict[Cell, list[str]]:
    return {cell: [one.text for one in outcomes] for cell, outcomes in found.items()}


def test_independent_answers_are_the_same_by_several() -> None:
    """Models whose sessions take turns, here; what is as served depends on its neighbours."""
    systems = [name for name in SYSTEMS if name not in (VERIFY, PASSAGES, "served")]
    with closing(LocalCloud(ScriptedEdge(noise(1)))) as cloud:
        one, four = (
            texts(evaluation(ScriptedEdge(noise(0)), cloud, workers=n).run([], [0.1], systems))
            for n in (1, 4)
        )
    assert four == one


def test_sessions_that_share_passes_answer_as_one_does() -> None:
    """Passes of several round otherwise; of the bundled pair no answer hangs by that."""
    task, systems = pocketqa().first(8), ["edge", "cloud", "exact"]
    with open_models(Settings(threads=1), answers=4) as models:
        one, four = (
            evaluation(*models.both(), workers=workers, task=task).run([], [], systems)
            for workers in (1, 4)
        )
    assert texts(four) == texts(one)


def as_served(folder: Path, kind: str, fault: Failing) -> list[Outcome]:
    """By a router or verified: a share that runs short."""
    way: dict[str, Any] = {"verify": "on"} if kind == VERIFY else {"threshold": 0.3}
    policy = Policy(cloud_share=0.1, on_cloud_error="raise", **way)
    contender = Contender(kind, MaxProb(), identity=kind, served={0.1: policy})
    cloud = ScriptedCloud(noise(1), fault=fault, verifies=True)
    once = evaluation(ScriptedEdge(noise(0)), cloud, folder)
    return once.served(contender)[Cell(kind + SERVED, 0.1)]


def failing(at: int) -> Failing:
    return lambda ask: CloudUnavailable("gone") if ask == at else None


def timeless(found: list[Outcome]) -> list[Outcome]:
    return [msgspec.structs.replace(one, seconds=0.0) for one in found]


@pytest.mark.parametrize("kind", ["max-prob", VERIFY])
@pytest.mark.parametrize("every", [1, 3, 17])
def test_as_served_an_interrupted_run_goes_on_with_the_share_as_it_was(
    tmp_path: Path, kind: str, every: int
) -> None:
    whole = as_served(tmp_path / "whole", kind, lambda ask: None)
    assert len({one.bucket for one in whole}) > len(whole) / 2
    folder, again = tmp_path / "cut", list[Outcome]()
    for gone in range(0, 600, every):
        with suppress(CloudUnavailable):
            again = as_served(folder, kind, failing(gone))
            break
    assert gone >= every
    assert timeless(again) == timeless(whole)
    assert timeless(as_served(folder, kind, lambda ask: None)) == timeless(whole)
