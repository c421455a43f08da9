"""Collect, label, fit, calibrate: in this order, alone or all at once, cut anywhere and gone on."""

import shutil
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgewise.cloud.local import LocalCloud
from edgewise.costs.price import BilledTokens, price_of
from edgewise.errors import CloudUnavailable, RouterMismatch, UsageError
from edgewise.opening import open_router
from edgewise.routers.card import CONFIG, WEIGHTS, read_card
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from edgewise_lab.evaluation.store import read
from edgewise_lab.evaluation.tasks.base import digest, trained_digests
from edgewise_lab.training.collect import OWN, Sample, collect_features, steps_along
from edgewise_lab.training.fit import Recipe
from edgewise_lab.training.labels.base import Labelled
from edgewise_lab.training.router import SHARES
from tests.training.linear import KIND, Linear
from tests.training.scripted_training import (
    CLOUD,
    EDGE,
    INPUTS,
    PROMPT,
    STAGES,
    fit,
    made,
    only,
    scripted,
    training,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was not cut."""
    folder = tmp_path_factory.mktemp("whole") / "router"
    training(folder).run()
    return folder


def test_a_checkpoint_says_what_it_is(whole: Path) -> None:
    card = read_card(whole)
    assert (card.kind, card.inputs, card.top_k) == (KIND, INPUTS, 0)
    assert "differs" in (card.label or "")
    assert card.trained_on == "sums, 20 questions"
    assert (card.calibrated_on or "").startswith("sums, 3")
    assert list(card.thresholds) == [f"{share:g}" for share in SHARES]
    assert list(card.realised) == list(card.thresholds)
    assert card.loss is not None
    assert card.baseline_loss is not None
    assert card.loss < card.baseline_loss
    assert [value for _, value in sorted(card.probability)] == sorted(
        value for _, value in card.probability
    )
    assert trained_digests(whole) == {digest(PROMPT.format(i)) for i in range(20)}


def test_the_router_knows_what_it_learnt(whole: Path) -> None:
    """The label is positive where the two texts differ, and only there."""
    edge = scripted(EDGE)
    router, _ = open_router(Settings(router=str(whole)), edge)
    session = edge.session(router.needs, top=router.top)
    scores: list[float] = []
    for at in range(len(CLOUD) + 1):
        session.open([*PROMPT.format(60).encode(), *CLOUD.encode()[:at]])
        scores.append(router.score(session.step()))
    assert all(0 <= score <= 1 for score in scores)
    differs = [a != b for a, b in zip(CLOUD, EDGE, strict=True)] + [False]
    assert np.mean(np.array(scores)[differs]) > np.mean(np.array(scores)[~np.array(differs)])


@pytest.mark.parametrize("label", ["final", "value", "rescue"])
def test_without_answers_the_clouds_own_are_learnt_from(
    tmp_path: Path, whole: Path, label: str
) -> None:
    """It is always right here, so each label is what it is with the answers."""
    for known in (True, False):
        for stage in STAGES:
            only(training(tmp_path / f"{known}", label, known=known), stage)
    assert made(tmp_path / "True") == made(tmp_path / "False")
    assert trained_digests(tmp_path / "False") == trained_digests(whole)


@pytest.mark.parametrize("label", ["final", "rescue"])
def test_what_it_will_take_is_about_what_it_takes(tmp_path: Path, label: str) -> None:
    one = training(tmp_path / "router", label, known=False)
    told = one.estimate()
    assert told is not None
    one.run()
    assert told.tokens.output == pytest.approx(one.meter.tokens.output, rel=0.3)
    assert one.meter.tokens.output > 20 * len(CLOUD)
    assert "0.01" in told._replace(tokens=BilledTokens(output=2500)).described(price_of("1,1,4"))
    assert training(tmp_path / "router", label, known=False).estimate() is None


def test_what_a_cloud_in_this_process_reads_is_counted(tmp_path: Path) -> None:
    with closing(LocalCloud(scripted(CLOUD))) as cloud:
        one = training(tmp_path, "rescue", cloud=cloud)
        one.collect()
        assert one.meter.tokens == BilledTokens(input=20 * len(PROMPT.format(0) + EDGE + "\0"))


def test_stage_by_stage_is_as_all_at_once(tmp_path: Path, whole: Path) -> None:
    for stage in STAGES:
        only(training(tmp_path / "router"), stage)
    assert made(tmp_path / "router") == made(whole)


def test_all_at_once_again_asks_for_nothing_new(tmp_path: Path, whole: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "router"))
    cloud = ScriptedCloud(replying(CLOUD, prompt=PROMPT.format(0)))
    one = training(folder, cloud=cloud)
    fit(one)
    assert cloud.asks == []
    one.calibrate()
    assert made(folder) == made(whole)


@pytest.mark.parametrize(
    ("stage", "problem", "setting"),
    [("fit", "run all stages first", "stage"), ("calibrate", "There is no router", "router")],
)
def test_a_stage_needs_those_before(tmp_path: Path, stage: str, problem: str, setting: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        only(training(tmp_path / "router"), stage)
    assert caught.value.setting == setting


def test_a_fit_needs_labels_of_its_own_name(tmp_path: Path) -> None:
    one = training(tmp_path / "router")
    one.collect()
    with pytest.raises(UsageError, match="run all stages"):
        one.fit()
    one.label()
    with pytest.raises(UsageError, match="run all stages"):
        training(tmp_path / "router", "final").fit()
    one.fit()


@pytest.mark.parametrize("gone", [0, 7, 19, 20, 24])
def test_a_cloud_that_goes_away_at_any_moment(tmp_path: Path, whole: Path, gone: int) -> None:
    """While answers are collected, and while thresholds are set."""

    def fault(ask: int) -> CloudUnavailable | None:
        return CloudUnavailable("gone") if ask == gone else None

    with pytest.raises(CloudUnavailable):
        training(tmp_path / "router", fault=fault).run()
    training(tmp_path / "router").run()
    assert made(tmp_path / "router") == made(whole)


@pytest.mark.parametrize("name", ["answers.jsonl", "labels-mismatch.jsonl"])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.999])
def test_a_run_log_that_was_cut_anywhere(
    tmp_path: Path, whole: Path, name: str, keep: float
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "router"))
    path = folder / "data" / name
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    training(folder).run()
    assert made(folder) == made(whole)


@pytest.mark.parametrize("failing", ["save_file", "partial"])
def test_a_fit_that_is_cut_leaves_no_card_of_other_weights(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Old thresholds beside new weights would be believed."""
    folder = Path(shutil.copytree(whole, tmp_path / "router"))

    def cut(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if failing == "save_file":
            patched.setattr("edgewise_lab.training.publish.save_file", cut)
        else:
            patched.setattr(Path, "replace", cut)
        with pytest.raises(KeyboardInterrupt):
            training(folder, recipe=Recipe(epochs=2, seed=5)).fit()
    assert not (folder / CONFIG).exists()
    with pytest.raises(UsageError, match="no router"):
        training(folder).calibrate()
    training(folder).run()
    assert made(folder) == made(whole)


def test_a_router_of_another_edge_is_not_calibrated(tmp_path: Path, whole: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "router"))
    card = msgspec.structs.replace(read_card(folder), edge_fingerprint="another", behaviour=())
    (folder / CONFIG).write_bytes(msgspec.json.encode(card))
    with pytest.raises(RouterMismatch, match="another file"):
        training(folder).calibrate()
    tokenizer = ByteTokenizer("other")
    edge = ScriptedEdge(replying(EDGE, prompt=PROMPT.format(0)), tokenizer=tokenizer)
    with pytest.raises(RouterMismatch, match="another tokenizer"):
        training(whole, edge=edge).calibrate()


@pytest.mark.parametrize("kind", ["entropy", "margin", "edgewise.routers.untrained:MaxProb"])
def test_a_router_without_training_is_calibrated(tmp_path: Path, kind: str) -> None:
    one = training(tmp_path / "router", kind=kind)
    one.collect()
    one.label()
    with pytest.raises(UsageError, match="no fit"):
        one.fit()
    card = one.calibrate([0.1, 0.5])
    assert (card.kind, card.inputs, card.label) == (kind, (), "")
    assert list(card.thresholds) == ["0.1", "0.5"]
    assert not (tmp_path / "router" / WEIGHTS).exists()
    router, found = open_router(Settings(router=str(tmp_path / "router")), scripted(EDGE))
    assert found == card
    assert router.top >= 0
    again = one.calibrate([0.2])
    assert list(again.thresholds) == list(again.realised) == ["0.2"]
    assert one.calibrate([0.2]) == again


def test_data_may_lie_elsewhere_and_be_shared(tmp_path: Path, whole: Path) -> None:
    cloud = ScriptedCloud(replying(CLOUD, prompt=PROMPT.format(0)))
    one, other = (
        training(tmp_path / name, cloud=cloud, data=tmp_path / "data", inputs=inputs)
        for name, inputs in (("one", INPUTS), ("other", ("hidden",)))
    )
    one.run()
    asked = len(cloud.asks)
    fit(other)
    assert len(cloud.asks) == asked
    assert not (tmp_path / "one" / "data").exists()
    assert made(tmp_path / "one") == made(whole)
    assert read_card(tmp_path / "other").inputs == ("hidden",)


@pytest.mark.parametrize(("inputs", "kept"), [(("hidden",), 0), (("hidden", "top_logprobs"), 10)])
def test_a_card_has_the_top_k_that_is_read(
    tmp_path: Path, inputs: tuple[str, ...], kept: int
) -> None:
    one = training(tmp_path / "router", inputs=inputs)
    fit(one)
    card = read_card(tmp_path / "router")
    assert card.top_k == kept
    assert Linear.load(card, tmp_path / "router").top == kept


@pytest.mark.parametrize(("edge_room", "cloud_room"), [(6, 6), (4, 9), (9, 4)])
@pytest.mark.parametrize("label", ["value", "mismatch"])
def test_texts_end_where_an_answer_would(
    tmp_path: Path, label: str, edge_room: int, cloud_room: int
) -> None:
    """With the smaller context, in the answers and the rollouts after them."""
    size = len(PROMPT.format(0))
    cloud = LocalCloud(ScriptedEdge(scripted("7 it is, 7.").script, context=size + cloud_room))
    edge = ScriptedEdge(scripted(EDGE).script, context=size + edge_room)
    with closing(cloud):
        one = training(tmp_path, label, edge=edge, cloud=cloud)
        one.collect()
        one.label()
    lines = (tmp_path / "data" / f"labels-{label}.jsonl").read_bytes()
    kept = [msgspec.json.decode(line, type=Labelled) for line in lines.splitlines()]
    assert {len(line.values) for line in kept} == {min(edge_room, cloud_room) + 1}


@pytest.mark.parametrize("label", ["rescue", "mismatch"])
def test_text_and_ranks_are_learnt_and_served(label: str, tmp_path: Path) -> None:
    """Ranks are among the edge's own writing, whatever text the label reads."""
    prompt = tuple(PROMPT.format(0).encode())
    sample = Sample("", prompt, tuple(EDGE.encode()), True)
    other = tmp_path / "other"
    other.mkdir()
    one = training(tmp_path, label, inputs=("text", "ranks"))
    one.run()
    card = read_card(tmp_path)
    assert len(card.reference) == 3
    own = collect_features(read(tmp_path / "data" / OWN, Sample), "own", scripted(EDGE), other)
    assert np.allclose([column[-1] for column in card.reference], own.inputs["ranks"].max(axis=0))
    edge = scripted(EDGE)
    router = open_router(Settings(router=str(tmp_path)), edge)[0]
    scores = [
        router.score(step)
        for step in steps_along(edge.session(router.needs, top=router.top), sample)
    ]
    assert max(scores[0], scores[9]) > max(scores[2:8])


def test_only_who_writes_for_a_label_is_asked(tmp_path: Path) -> None:
    cloud = ScriptedCloud(replying(CLOUD, prompt=PROMPT.format(0)))
    edge = scripted(EDGE)
    one = training(tmp_path / "router", cloud=cloud, edge=edge)
    one.collect()
    assert len(cloud.asks) == 20
    one.label()
    assert (len(cloud.asks), edge.sessions) == (20, 0)
