"""What every kind of rollouts promises: greedy continuations, in order, told as they end."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudUnavailable, ContextOverflow
from edgewise.rollouts.base import Continuation, OneByOne, Prefix, Rollouts
from edgewise.rollouts.cloud import CloudRollouts
from edgewise.rollouts.open import edge_rollouts
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise

N = 12


class Made(NamedTuple):
    """Rollouts, and a model that says what they should write."""

    rollouts: Rollouts
    model: EdgeModel


@pytest.fixture(params=["scripted", "llama", "narrow", "cloud", "local"])
def made(request: pytest.FixtureRequest, bpe_path: Path) -> Iterator[Made]:
    if request.param in ("scripted", "cloud"):
        model = ScriptedEdge(noise())
        cloud = CloudRollouts(ScriptedCloud(noise()), width=3)
        yield Made(OneByOne(model) if request.param == "scripted" else cloud, model)
        return
    with LlamaModel(bpe_path, context=64, threads=1, gpu_layers=0, slots=4) as model:
        if request.param == "local":
            with closing(LocalCloud(LlamaModel(bpe_path, context=64, threads=1, slots=4))) as cloud:
                yield Made(CloudRollouts(cloud, width=3), model)
            return
        with closing(edge_rollouts(model, 2 if request.param == "narrow" else 8)) as rollouts:
            yield Made(rollouts, model)


def prefixes() -> list[Prefix]:
    """Of several lengths; neighbours begin alike."""
    start = tuple(range(40, 52))
    return [Prefix((*start[: 4 + i], 60 + i, *start[i:]), N - i % 3) for i in range(9)]


def by_steps(model: EdgeModel, prefix: Prefix) -> Continuation:
    ids: list[int] = []
    logprobs: list[float] = []
    session = model.session()
    session.open(prefix.ids)
    while len(ids) < prefix.n and not (ids and ids[-1] in model.tokenizer.eos_ids):
        step = session.step()
        ids.append(step.proposed)
        logprobs.append(step.logprob(step.proposed))
        session.extend(ids[-1:])
    session.close()
    return Continuation(tuple(ids), tuple(logprobs))


def test_each_prefix_is_continued_as_by_a_session(made: Made) -> None:
    wanted = [by_steps(made.model, prefix) for prefix in prefixes()]
    for _ in range(2):  # what the first run left behind does not matter
        told: dict[int, Continuation] = {}
        found = made.rollouts.run(prefixes(), told.__setitem__)
        assert [c.ids for c in found] == [c.ids for c in wanted]
        assert told == dict(enumerate(found))
    if isinstance(made.model, ScriptedEdge) and isinstance(made.rollouts, CloudRollouts):
        return  # the scripted cloud tells no logprobs
    for one, other in zip(found, wanted, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=0.02)
    assert made.rollouts.run([]) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_draws_follow_the_seed(bpe_path: Path, seed: int) -> None:
    drawn = Sampling(temperature=1.0, seed=seed)
    asked = [Prefix(p.ids, p.n, drawn) for p in prefixes()]
    with LlamaModel(bpe_path, context=64, threads=1, gpu_layers=0, slots=2) as model:
        with closing(edge_rollouts(model)) as rollouts:
            found = rollouts.run(asked)
        assert [c.ids for c in found] == [c.ids for c in OneByOne(model).run(asked)]
        assert [c.ids for c in found] != [by_steps(model, p).ids for p in asked]


def test_a_prefix_without_room(bpe_path: Path) -> None:
    with (
        LlamaModel(bpe_path, context=16, threads=1, gpu_layers=0) as model,
        closing(edge_rollouts(model)) as rollouts,
        pytest.raises(ContextOverflow, match="raise the context"),
    ):
        rollouts.run([Prefix((1, 2, 3), 14)])


def test_the_first_failure_of_the_cloud_is_told_and_the_rest_is_kept() -> None:
    def fault(ask: int) -> CloudUnavailable | None:
        return CloudUnavailable("gone.") if ask == 5 else None

    told: dict[int, Continuation] = {}
    cloud = ScriptedCloud(noise(), fault=fault)
    with pytest.raises(CloudUnavailable):
        CloudRollouts(cloud, width=1).run(prefixes(), told.__setitem__)
    assert list(told) == [0, 1, 2, 3, 4]
