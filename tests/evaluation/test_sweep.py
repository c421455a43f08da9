"""Sweeps: every system on the same questions, resumable, with honest baselines."""

from pathlib import Path

import pytest

from edgewise.errors import CloudUnavailable, UsageError
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise_lab.evaluation.plan import Evaluation, contender_named
from edgewise_lab.evaluation.report import CLOUD, EDGE, as_csv, rows, summary
from edgewise_lab.evaluation.store import OUTCOMES, Cell, Store
from edgewise_lab.evaluation.tasks.base import Question, Task

PROMPT = "Which animal is it?"
WRONG = "Well, a cat. Therefore, the answer is cat (a)."
RIGHT = "I say dog. Therefore, the answer is dog (b)."
TASK = Task(
    "animals",
    tuple(
        Question(f"{i}", "zoo", PROMPT, "dog", "choice", choices=("cat", "dog")) for i in range(4)
    ),
    80,
)
MAX_PROB = contender_named("max-prob")


def evaluation(store: Store, *, cloud: ScriptedCloud | None = None) -> Evaluation:
    return Evaluation(
        TASK,
        TASK,
        edge=ScriptedEdge(replying(WRONG, prompt=PROMPT, unsure=[0, 6])),
        cloud=cloud or ScriptedCloud(replying(RIGHT, prompt=PROMPT)),
        store=store,
        done=lambda: None,
    )


def test_every_report_has_its_baselines() -> None:
    found = evaluation(Store(None, {})).run([MAX_PROB], [0.05, 0.2], baselines=True)
    fixed = [cell.system for cell in found if cell.share is None]
    assert fixed == ["edge", "cloud", "commit-point"]
    at = {cell.system for cell in found if cell.share == 0.2}
    assert at == {"max-prob", "random", "entropy", "margin", "query-level"}
    told = summary(TASK.name, "max-prob", rows(found))
    assert (told.accuracy.edge, told.accuracy.cloud) == (0.0, 1.0)
    assert told.cloud_share == pytest.approx(2 / 47, abs=0.03)
    assert told.families["zoo"].questions == 4
    lines = as_csv(rows(found)).splitlines()
    assert len(lines) == 1 + 2 * len(found)
    assert len({line.count(",") for line in lines}) == 1


def test_without_baselines_only_what_was_asked_for_is_run() -> None:
    found = evaluation(Store(None, {})).run([MAX_PROB], [0.05], baselines=False)
    assert list(found) == [EDGE, CLOUD, Cell("max-prob", 0.05)]


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    whole = evaluation(Store(tmp_path / "a", {"x": 1})).run([MAX_PROB], [0.05], baselines=True)

    def fails(ask: int) -> CloudUnavailable | None:
        return CloudUnavailable("gone") if ask == 6 else None

    broken = ScriptedCloud(replying(RIGHT, prompt=PROMPT), fault=fails)
    with pytest.raises(CloudUnavailable):
        evaluation(Store(tmp_path / "b", {"x": 1}), cloud=broken).run(
            [MAX_PROB], [0.05], baselines=True
        )
    path = tmp_path / "b" / OUTCOMES
    kept = path.read_bytes()
    assert kept.count(b"\n") >= 8
    path.write_bytes(kept[:-9])  # killed in the middle of a line
    cloud = ScriptedCloud(replying(RIGHT, prompt=PROMPT))
    resumed = evaluation(Store(tmp_path / "b", {"x": 1}), cloud=cloud)
    again = resumed.run([MAX_PROB], [0.05], baselines=True)
    assert {cell: [o.text for o in found] for cell, found in again.items()} == {
        cell: [o.text for o in found] for cell, found in whole.items()
    }
    before = len(cloud.asks)
    evaluation(Store(tmp_path / "b", {"x": 1}), cloud=cloud).run([MAX_PROB], [0.05], baselines=True)
    assert len(cloud.asks) == before


def test_results_of_something_else_are_not_mixed_in(tmp_path: Path) -> None:
    Store(tmp_path, {"edge": "a"})
    with pytest.raises(UsageError, match="other models"):
        Store(tmp_path, {"edge": "b"})


def test_a_damaged_store_is_said_so(tmp_path: Path) -> None:
    Store(tmp_path, {})
    (tmp_path / OUTCOMES).write_bytes(b"nonsense\n")
    with pytest.raises(UsageError, match="damaged"):
        Store(tmp_path, {})
