"""Which systems an evaluation runs, with which thresholds, and what of it is kept for whom."""

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import Needs, Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudTimeout, CloudUnavailable, ContextOverflow, UsageError
from edgewise.routers.card import RouterCard
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_cloud import Failing, ScriptedCloud
from edgewise.testing.scripted_edge import HIDDEN, ScriptedEdge, noise, replying
from edgewise_lab.evaluation.plan import (
    BASELINES,
    EXACT,
    SYSTEMS,
    VERIFY,
    Contender,
    Evaluation,
    contender_named,
    manifest,
)
from edgewise_lab.evaluation.report import CLOUD, EDGE, SERVED
from edgewise_lab.evaluation.store import OUTCOMES, THRESHOLDS, Cell, Store
from edgewise_lab.evaluation.systems import cloud_share
from edgewise_lab.evaluation.tasks.base import Grading, Question, Task
from edgewise_lab.evaluation.tasks.grading import grader

PROMPT = "Which animal is it?"
WRONG = "Well, a cat. Therefore, the answer is cat (a)."
RIGHT = "I say dog. Therefore, the answer is dog (b)."
PLAIN = ("edge", "cloud", "served", "static")


def animals(count: int = 3, *, choices: bool = True) -> Task:
    check: Grading = "choice" if choices else "regex"
    given = ("cat", "dog") if choices else None
    questions = (Question(f"{i}", "zoo", PROMPT, "dog", check, choices=given) for i in range(count))
    return Task("animals", tuple(questions), 80)


class Counted:
    """Asks at given positions of the answer; counts how often it is asked itself."""

    needs, top = Needs.NOTHING, 0

    def __init__(self, *positions: int) -> None:
        self._positions = [len(PROMPT) + position for position in positions]
        self.scored = 0

    def score(self, step: Step) -> float:
        self.scored += 1
        return 0.9 if step.position in self._positions else 0.1


def evaluation(
    folder: Path | None = None,
    *,
    task: Task | None = None,
    edge: ScriptedEdge | None = None,
    cloud: ScriptedCloud | LocalCloud | None = None,
    fault: Failing = lambda ask: None,
    done: list[None] | None = None,
    deadline: float = 60,
) -> Evaluation:
    counted: list[None] = [] if done is None else done
    return Evaluation(
        task or animals(),
        animals(2),
        edge=edge or ScriptedEdge(replying(WRONG, prompt=PROMPT, unsure=[0, 6])),
        cloud=cloud or ScriptedCloud(replying(RIGHT, prompt=PROMPT), fault=fault),
        store=Store(folder, {"task": "animals"}),
        done=lambda: counted.append(None),
        deadline=deadline,
    )


def card(**thresholds: float) -> RouterCard:
    return RouterCard(
        kind="max-prob",
        edge_fingerprint="scripted",
        tokenizer_fingerprint="bytes",
        hidden_size=HIDDEN,
        thresholds={f"0.{name.removeprefix('at_0_')}": at for name, at in thresholds.items()},
    )


ALWAYS = Contender("always", Constant(1.0), card(at_0_1=0.5), "always")


def test_a_card_brings_its_thresholds() -> None:
    """Nothing is calibrated where the card says it all: each answer is scored once."""
    router = Counted(0)
    contender = Contender("mine", router, card(at_0_1=0.5, at_0_3=0.95))
    found = evaluation().pairs(contender, [0.1, 0.3])
    assert [cloud_share(found[Cell("mine", share)]) > 0 for share in (0.1, 0.3)] == [True, False]
    # Every token but those of the cloud, which come one a consult here.
    assert router.scored == sum(o.output_tokens for cell in found.values() for o in cell)


def test_what_a_card_lacks_is_calibrated_and_kept(tmp_path: Path) -> None:
    first, again = Counted(0, 1, 2), Counted(0, 1, 2)
    found, kept = (
        evaluation(tmp_path).pairs(
            Contender("mine", router, card(at_0_9=0.0), identity="one"), [0.05, 0.9]
        )
        for router in (first, again)
    )
    assert list(found) == [Cell("mine", 0.05), Cell("mine", 0.9)]
    assert (tmp_path / THRESHOLDS).read_bytes().count(b"\n") == 1
    assert kept == found
    assert again.scored == 0


def test_a_router_of_the_same_name_is_calibrated_for_itself(tmp_path: Path) -> None:
    routers = {"often": Counted(*range(20)), "seldom": Counted(0)}
    often, seldom = (
        evaluation(tmp_path).pairs(Contender("mine", router, identity=name), [0.3])
        for name, router in routers.items()
    )
    assert routers["seldom"].scored > 0
    tokens = [[o.cloud_tokens for o in found[Cell("mine", 0.3)]] for found in (often, seldom)]
    assert tokens[0] != tokens[1]


def test_without_an_identity_nothing_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        router = Counted(0)
        evaluation(tmp_path).pairs(Contender("mine", router, card(at_0_1=0.5)), [0.1])
        assert router.scored > 0
    assert not (tmp_path / OUTCOMES).exists()
    assert not (tmp_path / THRESHOLDS).exists()


def test_a_share_that_was_added_later_costs_only_itself(tmp_path: Path) -> None:
    evaluation(tmp_path).run([contender_named("max-prob")], [0.05], PLAIN)
    cloud = ScriptedCloud(replying(RIGHT, prompt=PROMPT))
    lines = (tmp_path / OUTCOMES).read_bytes()
    evaluation(tmp_path, cloud=cloud).run([contender_named("max-prob")], [0.05, 0.2], PLAIN)
    assert (tmp_path / OUTCOMES).read_bytes().startswith(lines)
    added = (tmp_path / OUTCOMES).read_bytes()[len(lines) :]
    assert added.count(b"\n") == added.count(b'"share":0.2') == 3


def test_baselines_are_named_once() -> None:
    found = [cell.system for cell in evaluation().run([contender_named("random")], [0.1])]
    others = [name for name in BASELINES if name != "random"]
    assert found == ["edge", "cloud", "random", *others, "query-level"]


@pytest.mark.parametrize("systems", [SYSTEMS, PLAIN, *((name,) for name in SYSTEMS)])
@pytest.mark.parametrize("choices", [True, False])
def test_how_many_answers_a_run_takes_is_known_before(
    systems: Sequence[str], choices: bool
) -> None:
    done, asked = list[None](), ([contender_named("random")], [0.1, 0.3], systems)
    planned = evaluation(task=animals(choices=choices), done=done)
    planned.run(*asked)
    assert len(done) == planned.answers(*asked)


def test_verification_is_a_baseline_where_the_cloud_can() -> None:
    """Exact, the answers are the cloud's own."""
    done, asked = list[None](), ([contender_named("random")], [0.1, 0.3])
    cloud = ScriptedCloud(replying(RIGHT, prompt=PROMPT), verifies=True)
    planned = evaluation(cloud=cloud, done=done)
    found = planned.run(*asked)
    assert len(done) == planned.answers(*asked)
    assert all(found[Cell(VERIFY + SERVED, share)][0].text == RIGHT for share in (0.1, 0.3))
    assert [o.text for o in found[EXACT]] == [o.text for o in found[CLOUD]]
    assert 0 < sum(o.changed for o in found[EXACT]) < sum(o.output_tokens for o in found[EXACT])


def test_a_question_that_leaves_no_room_is_refused_before_any_answer() -> None:
    long = Question("long", "zoo", PROMPT * 300, "dog", "regex")
    with pytest.raises(ContextOverflow, match=r"'long'.* 5700"):
        evaluation(task=Task("animals", (*animals(1).questions, long), 80))
    small = LocalCloud(ScriptedEdge(replying(RIGHT, prompt=PROMPT), context=len(PROMPT) - 1))
    with closing(small), pytest.raises(ContextOverflow, match=f"{len(PROMPT) - 1}"):
        evaluation(cloud=small)


@pytest.mark.parametrize(("edge_room", "cloud_room"), [(12, 12), (12, 9), (9, 12)])
def test_at_the_end_of_a_context_every_system_answers(edge_room: int, cloud_room: int) -> None:
    """A pair's answer ends with the smaller one: a consult behind it would be declined."""
    large = ScriptedEdge(replying(RIGHT, prompt=PROMPT), context=len(PROMPT) + cloud_room)
    edge = ScriptedEdge(
        replying(WRONG, prompt=PROMPT, unsure=range(20)), context=len(PROMPT) + edge_room
    )
    with closing(LocalCloud(large)) as cloud:
        found = evaluation(edge=edge, cloud=cloud).run([ALWAYS], [0.1])
    written = {cell: {o.output_tokens for o in outcomes} for cell, outcomes in found.items()}
    assert (written[EDGE], written[CLOUD]) == ({edge_room + 1}, {cloud_room + 1})
    pairs = [Cell(name, 0.1) for name in ("always", *BASELINES)]
    assert {n for cell in pairs for n in written[cell]} == {min(edge_room, cloud_room) + 1}


def test_without_answers_the_clouds_own_are_what_is_agreed_with(tmp_path: Path) -> None:
    questions = (msgspec.structs.replace(q, answer="", known=False) for q in animals().questions)
    task = Task("animals", tuple(questions), 80)
    known = evaluation().run([ALWAYS], [0.1])
    for _ in range(2):  # the second time from the store
        found = evaluation(tmp_path, task=task).run([ALWAYS], [0.1])
        for cell, outcomes in found.items():
            assert [o.right for o in outcomes] == [o.right for o in known[cell]]


def test_kept_answers_are_graded_as_today(tmp_path: Path) -> None:
    """Whoever graded them; what is kept stays as it is."""
    evaluation(tmp_path).run([], [], [EDGE.system])
    lines = (tmp_path / OUTCOMES).read_text().replace(grader(), "another")
    lines = lines.replace('"right":false', '"right":true')
    (tmp_path / OUTCOMES).write_text(lines)
    found = evaluation(tmp_path).run([], [], [EDGE.system])
    assert [(one.right, one.grader) for one in found[EDGE]] == [(False, grader())] * 3
    assert (tmp_path / OUTCOMES).read_text() == lines


@pytest.mark.parametrize("gone", range(0, 30, 3))
def test_cut_at_any_consult_the_same_comes_out(tmp_path: Path, gone: int) -> None:
    contenders = [contender_named("margin"), contender_named("random")]

    def fault(ask: int) -> CloudUnavailable | None:
        return CloudUnavailable("gone") if ask == gone else None

    def run(made: Evaluation) -> dict[Cell, list[tuple[str, int]]]:
        found = made.run(contenders, [0.1], PLAIN)
        return {cell: [(o.text, o.cloud_tokens) for o in each] for cell, each in found.items()}

    with suppress(CloudUnavailable):
        run(evaluation(tmp_path, fault=fault))
    assert run(evaluation(tmp_path)) == run(evaluation())


def test_the_deadline_is_kept() -> None:
    slow = evaluation(cloud=ScriptedCloud(noise(), delay=0.5), deadline=0.05)
    with pytest.raises(CloudTimeout):
        slow.pairs(ALWAYS, [0.1])


class Behind(ScriptedCloud):
    """An engine that says which model it serves."""

    def __init__(self, model: str) -> None:
        super().__init__(noise())
        self.name, self._model = "http://127.0.0.1:8080", model

    def identity(self) -> str:
        return f"{self.name} {self._model}"


def test_another_model_behind_one_address_and_another_context(tmp_path: Path) -> None:
    """In a smaller one answers end sooner; the usual one is as before it was held."""
    task, usual = animals(2), ScriptedEdge(noise())
    large, small = Behind("large"), Behind("small")
    short = ScriptedEdge(noise(), context=300)
    told = [
        manifest(task, task, *models)
        for models in ((usual, large), (usual, large), (usual, small), (short, large))
    ]
    assert told[0].keys() == {"format", "task", "questions", "edge", "cloud"}
    assert told[3]["contexts"] == (300,)
    for same in told[:2]:
        Store(tmp_path, same)
    for other in told[2:]:
        with pytest.raises(UsageError, match="other models"):
            Store(tmp_path, other)


def test_a_model_in_this_process_is_known_by_its_weights() -> None:
    task, edge = animals(2), ScriptedEdge(noise())
    with closing(LocalCloud(LlamaModel(bundled("cloud"), threads=1))) as cloud:
        assert manifest(task, task, edge, cloud)["cloud"] == cloud.model.fingerprint()
