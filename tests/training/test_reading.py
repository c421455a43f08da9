"""How likely the cloud finds a reference: the same in this process and through an engine."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from edgewise.cloud.local import LocalCloud
from edgewise.errors import UsageError
from edgewise.routers.card import read_card
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import SIZE, ScriptedEdge, noise, replying
from edgewise_lab.training.collect import Sample, read_by_cloud
from edgewise_lab.training.spending import SpendingMeter
from tests.training.linear import Linear
from tests.training.scripted_training import CLOUD, PROMPT, fit, scripted, training

TEXTS = [Sample(f"{i}", (*b"How?",), (*f"It is {i}.".encode(),), (), True) for i in range(3)]

reading = partial(read_by_cloud, meter=SpendingMeter())


def marked(found: Iterable[bool]) -> str:
    return "".join("^" if one else "." for one in found)


def test_a_model_here_and_an_engine_elsewhere_read_alike(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("here", "all", "five")]
    for folder in folders:
        folder.mkdir()
    here = reading(TEXTS, LocalCloud(ScriptedEdge(noise())), folders[0])
    every = reading(TEXTS, ScriptedCloud(noise(), candidates=SIZE), folders[1])
    five = reading(TEXTS, ScriptedCloud(noise(), candidates=5), folders[2])
    for one, other, bound in zip(here, every, five, strict=True):
        assert one.cloud == other.cloud == bound.cloud
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert all(a <= b + 1e-4 for a, b in zip(one.logprobs, bound.logprobs, strict=True))
        assert max(bound.logprobs) < 0


def test_what_was_read_is_kept(tmp_path: Path) -> None:
    told: list[None] = []
    read = reading(TEXTS[:2], ScriptedCloud(noise(), candidates=5), tmp_path)
    cloud = ScriptedCloud(noise(), candidates=5)
    again = reading(TEXTS, cloud, tmp_path, lambda: told.append(None))
    assert again[:2] == read
    assert len(cloud.asks) == len(TEXTS[2].ids)
    assert len(told) == 3


def test_an_engine_that_tells_no_candidates(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="log-probs") as caught:
        reading(TEXTS, ScriptedCloud(noise()), tmp_path)
    assert caught.value.setting == "label"


def test_co_llm_learns_from_the_references_of_a_task_that_has_them(tmp_path: Path) -> None:
    """The edge's and the cloud's logprobs are those of the reference's tokens."""
    reference = "Oh it was 7."
    cloud = ScriptedCloud(replying(CLOUD, prompt=PROMPT.format(0)), candidates=5)
    one = training(tmp_path / "router", "co-llm", reference=reference, cloud=cloud)
    with pytest.raises(UsageError, match="stage collect"):
        one.label()
    fit(one)
    data = Linear.data[-1]
    assert data.edge_logprob is not None
    assert data.cloud_logprob is not None
    assert len(data.labels) == 20 * len(reference)
    first = slice(0, len(reference))
    # "Oh it is 7." and "So it is 3." along "Oh it was 7.": the cloud is right at both first ids.
    assert marked(data.labels[first] > 0) == "^^.........."
    assert marked(data.cloud_logprob[first] > -1) == "^^^^^^......"
    assert (data.edge_logprob[first][:2] < -1).all()
    assert not (tmp_path / "router" / "data" / "answers.jsonl").exists()
    assert read_card(tmp_path / "router").label.endswith("both models, along the references")


def test_co_llm_learns_from_answers_where_there_are_no_references(tmp_path: Path) -> None:
    one = training(tmp_path / "router", "co-llm", edge=scripted("So it is 3."))
    fit(one)
    assert {path.name for path in (tmp_path / "router" / "data").iterdir()} == {
        "answers.jsonl",
        "answer-00000.safetensors",
        "labels-co-llm.jsonl",
    }
    assert read_card(tmp_path / "router").label.endswith("along the cloud's answers")
