"""What every kind of rollouts promises: greedy continuations, in order, told as they end."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeModel, Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.errors import CloudUnavailable
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise_lab.rollouts import Continuation, Prefix, Rollouts, local_rollouts
from tests import models
from tests.hybrid_models import HybridPaths

N = 12


class Made(NamedTuple):
    """Rollouts, and a model that says what they should write."""

    rollouts: Rollouts
    model: EdgeModel


@pytest.fixture(params=["scripted", "llama", "narrow", "cloud", "local"])
def made(request: pytest.FixtureRequest, bpe_path: Path) -> Iterator[Made]:
    if request.param == "cloud":
        yield Made(Rollouts(ScriptedCloud(noise()), width=3), ScriptedEdge(noise()))
        return
    if request.param == "scripted":
        edge = ScriptedEdge(noise())
        with closing(local_rollouts(edge)) as rollouts:
            yield Made(rollouts, edge)
        return
    with LlamaModel(bpe_path, context=64, threads=1, gpu_layers=0, slots=4) as model:
        if request.param == "local":
            with closing(LocalCloud(LlamaModel(bpe_path, context=64, threads=1, slots=4))) as cloud:
                yield Made(Rollouts(cloud, width=3), model)
            return
        with closing(local_rollouts(model, 2 if request.param == "narrow" else 8)) as rollouts:
            yield Made(rollouts, model)


def prefixes() -> list[Prefix]:
    """Of several lengths; neighbours begin alike."""
    start = tuple(range(40, 52))
    return [Prefix((*start[: 4 + i], 60 + i, *start[i:]), N - i % 3) for i in range(9)]


def by_steps(model: EdgeModel, prefix: Prefix) -> Continuation:
    ids: list[int] = []
    with closing(model.session()) as session:
        session.open(prefix.ids)
        while len(ids) < prefix.n and not (ids and ids[-1] in model.tokenizer.eos_ids):
            ids.append(session.step().proposed)
            session.extend(ids[-1:])
    return tuple(ids)


def test_each_prefix_is_continued_as_by_a_session(made: Made) -> None:
    wanted = [by_steps(made.model, prefix) for prefix in prefixes()]
    for _ in range(2):  # what the first run left behind does not matter
        told: dict[int, Continuation] = {}
        found = made.rollouts.run(prefixes(), told.__setitem__)
        assert found == wanted
        assert told == dict(enumerate(found))
    assert made.rollouts.run([]) == []


PREFIX = st.builds(
    Prefix, st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), st.integers(1, 5)
)


@given(asked=st.lists(PREFIX, max_size=12), width=st.integers(1, 5))
def test_any_prefixes_in_any_width_are_continued_as_one_by_one(
    asked: list[Prefix], width: int
) -> None:
    edge = ScriptedEdge(noise())
    told: dict[int, Continuation] = {}
    found = Rollouts(ScriptedCloud(noise()), width).run(asked, told.__setitem__)
    assert found == [by_steps(edge, prefix) for prefix in asked]
    assert told == dict(enumerate(found))


def test_a_continuation_ends_with_the_context(bpe_path: Path) -> None:
    """The last id may stand behind it, as in an answer of the decoder's."""
    asked = [Prefix(tuple(range(size)), 40) for size in (3, 9, 16)]
    with (
        LlamaModel(bpe_path, context=16, threads=1, gpu_layers=0) as model,
        closing(local_rollouts(model)) as together,
        closing(LocalCloud(LlamaModel(bpe_path, context=16, threads=1))) as cloud,
    ):
        several = [rollouts.run(asked) for rollouts in (together, Rollouts(cloud, width=1))]
        ends = model.tokenizer.eos_ids
    assert several[0] == several[1]
    lengths = [len(ids) for ids in several[0] if ids[-1] not in ends]
    assert lengths
    assert set(lengths) <= {14, 8, 1}


def test_the_first_failure_of_the_cloud_is_told_and_the_rest_is_kept() -> None:
    told: dict[int, Continuation] = {}
    faults = {5: CloudUnavailable("gone.")}
    with pytest.raises(CloudUnavailable):
        Rollouts(ScriptedCloud(noise(), fault=faults.get), 1).run(prefixes(), told.__setitem__)
    assert list(told) == [0, 1, 2, 3, 4]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of each decode of llama.cpp from here on."""
    runs: list[int] = []
    decode = llama_cpp.llama_decode

    def count(context: Any, batch: Any) -> int:
        runs.append(batch.n_tokens)
        return decode(context, batch)

    monkeypatch.setattr(llama_cpp, "llama_decode", count)
    return runs


@pytest.mark.parametrize("kind", ["transformer", "qwen35"])
def test_what_neighbours_begin_with_is_read_once(
    bpe_path: Path, hybrid_paths: HybridPaths, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """By each session, where its layers can go back."""
    path = bpe_path if kind == "transformer" else hybrid_paths[kind]
    start = tuple((7 * index) % 250 for index in range(40))
    with (
        LlamaModel(path, context=64, threads=1, gpu_layers=0) as model,
        closing(local_rollouts(model, 2)) as rollouts,
    ):
        runs = counted(monkeypatch)
        rollouts.run([Prefix((*start, number), 1) for number in range(8)])
    assert 80 <= sum(runs) <= 2 * len(start) + 8 * 2


def test_sessions_go_together_and_disturb_nobody(
    bpe_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LlamaModel(bpe_path, context=64, threads=1, gpu_layers=0) as model:
        wanted = by_steps(model, prefixes()[0])
        with closing(model.session(Needs.LOGITS)) as session:
            session.open(prefixes()[0].ids)
            first = session.step().proposed
            with closing(local_rollouts(model, 4)) as rollouts:
                runs = counted(monkeypatch)
                rollouts.run([Prefix((number,), 6) for number in range(8)])
                assert len(runs) < 8 * 6
            session.extend([first])
            assert (first, session.step().proposed) == wanted[:2]


@pytest.mark.parametrize(("context", "wanted", "width"), [(64, 8, 8), (4, 32, 4), (8192, 32, 4)])
def test_how_many_fit(tmp_path: Path, context: int, wanted: int, width: int) -> None:
    """llama.cpp wants room for an id of each in one decode, and memory is bounded."""
    path = models.write_transformer(tmp_path / "long.gguf", models.byte_level(), context=8192)
    made: list[int] = []
    with LlamaModel(path, context=context, threads=1, gpu_layers=0) as model:
        new, model.new_context = model.new_context, lambda n: made.append(n) or new(n)  # type: ignore[method-assign]
        local_rollouts(model, wanted).close()
    assert made == [width]
