"""Several threads answer: every outcome is kept as it comes, and a failure ends them all."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edgewise.cloud.base import CloudModel
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeModel
from edgewise.errors import CloudUnavailable
from edgewise.loop.policy import Policy
from edgewise.pair import open_models
from edgewise.routers.untrained import MaxProb
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import Failing, ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise_lab.evaluation.plan import PASSAGES, SYSTEMS, VERIFY, Contender, Evaluation
from edgewise_lab.evaluation.report import EDGE, SERVED
from edgewise_lab.evaluation.store import OUTCOMES, Cell, Store, run
from edgewise_lab.evaluation.systems import Outcome
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.evaluation.outcomes import outcome

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
    *,
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


@pytest.fixture(scope="module")
def bundled() -> Iterator[tuple[EdgeModel, CloudModel]]:
    with open_models(Settings(threads=1), answers=4) as models:
        yield models.both()


def test_sessions_that_share_passes_answer_as_one_does(
    bundled: tuple[EdgeModel, CloudModel],
) -> None:
    """Passes of several round otherwise; of the bundled pair no answer hangs by that."""
    task, systems = pocketqa().first(8), ["edge", "cloud", "exact"]
    one, four = (
        evaluation(*bundled, workers=workers, task=task).run([], [], systems) for workers in (1, 4)
    )
    assert texts(four) == texts(one)


def served(kind: str) -> Contender:
    """By a router or verified: a share that runs short."""
    policy = Policy(cloud_share=0.1, threshold=0.3, on_cloud_error="raise")
    if kind == VERIFY:
        policy = Policy(cloud_share=0.1, verify="on", on_cloud_error="raise")
    return Contender(kind, MaxProb(), identity=kind, served={0.1: policy})


def as_served(folder: Path, kind: str, fault: Failing, workers: int = 1) -> list[Outcome]:
    cloud = ScriptedCloud(noise(1), fault=fault, verifies=True)
    once = evaluation(ScriptedEdge(noise(0)), cloud, folder, workers=workers)
    return once.served(served(kind))[Cell(kind + SERVED, 0.1)]


def failing(at: int) -> Failing:
    return lambda ask: CloudUnavailable("gone") if ask == at else None


def timeless(found: list[Outcome]) -> list[object]:
    names = [name for name in Outcome.__struct_fields__ if name != "seconds"]
    return [[getattr(one, name) for name in names] for one in found]


@pytest.mark.parametrize("kind", ["max-prob", VERIFY])
@pytest.mark.parametrize("every", [1, 3, 17])
def test_as_served_an_interrupted_run_goes_on_with_the_share_as_it_was(
    tmp_path: Path, kind: str, every: int
) -> None:
    whole = as_served(tmp_path / "whole", kind, lambda ask: None)
    assert len({one.bucket for one in whole}) > len(whole) / 2

    folder, interrupted = tmp_path / "cut", 0
    for gone in range(0, 600, every):
        try:
            again = as_served(folder, kind, failing(gone))
            break
        except CloudUnavailable:
            interrupted += 1
    else:
        pytest.fail("it never came to its end")
    assert interrupted
    assert timeless(again) == timeless(whole)
    assert timeless(as_served(folder, kind, lambda ask: None)) == timeless(whole)
