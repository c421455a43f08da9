"""Sweeps: every system on the same questions, resumable, with honest baselines."""

from pathlib import Path

import pytest

from edgewise.errors import CloudUnavailable, UsageError
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise_lab.evaluation.plan import Evaluation, contender_named
from edgewise_lab.evaluation.report import CLOUD, EDGE, as_csv, rows, summary
from edgewise_lab.evaluation.store import OUTCOMES, Cell, Store
from edgewise_lab.evaluation.systems import CommitPoint, Outcome, query_level
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


def test_the_commit_point_is_one_consult_where_a_choice_is_named() -> None:
    cloud = ScriptedCloud(replying(RIGHT, prompt=PROMPT))
    edge = ScriptedEdge(replying("It is cat.", prompt=PROMPT))
    found = CommitPoint(edge, cloud, 80).answer(TASK.questions[0])
    assert (found.cloud_tokens, found.consults) == (1, 1)


def outcome(name: str, *, tokens: int, right: bool, by_cloud: bool, unsure: float) -> Outcome:
    return Outcome(
        question=name,
        family="f",
        text="",
        right=right,
        strict=right,
        output_tokens=tokens,
        cloud_tokens=tokens if by_cloud else 0,
        uncertainty=unsure,
    )


def test_query_level_sends_the_most_uncertain_questions_within_the_share() -> None:
    edge = [
        outcome(f"{i}", tokens=10, right=False, by_cloud=False, unsure=u)
        for i, u in enumerate((0.1, 0.9, 0.5, 0.2))
    ]
    cloud = [outcome(f"{i}", tokens=10, right=True, by_cloud=True, unsure=0) for i in range(4)]
    for share, right in ((0.2, []), (0.25, ["1"]), (0.5, ["1", "2"]), (1.0, ["0", "1", "2", "3"])):
        found = query_level(edge, cloud, share)
        assert [o.question for o in found if o.right] == right
