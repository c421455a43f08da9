"""What every kind of rollouts promises: greedy continuations, in order, told as they end."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeAbilities, EdgeModel, Floats, Needs, Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudUnavailable, ContextOverflow
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, EOT, Script, ScriptedEdge, noise
from edgewise_lab.rollouts import (
    BatchedRollouts,
    CloudRollouts,
    Continuation,
    Prefix,
    Rollouts,
    SequentialRollouts,
    cloud_rollouts,
    edge_rollouts,
)
from edgewise_lab.sequences import Chunk, Sequences, sequences_of

N = 12


class ScriptedSequences(Sequences):
    """Sequences of a scripted edge; counts the ids run and checks that there are no holes."""

    def __init__(self, edge: "Side", width: int) -> None:
        self.width, self.max_batch_ids = width, edge.max_batch_ids
        self.computed, self.passes, self.closed = 0, 0, False
        self._edge = edge
        self._held: list[list[int]] = [[] for _ in range(width)]

    def run(self, chunks: Sequence[Chunk]) -> Sequence[Step]:
        assert 0 < sum(len(chunk.ids) for chunk in chunks) <= self.max_batch_ids
        assert len({chunk.sequence for chunk in chunks}) == len(chunks)
        self.passes += 1
        steps: list[Step] = []
        for sequence, start, ids, output in chunks:
            held = self._held[sequence]
            assert len(held) == start
            held += ids
            self.computed += len(ids)
            if output:
                with closing(self._edge.session(Needs.LOGITS)) as session:
                    session.open(held)
                    steps.append(session.step())
        return steps

    def forget(self, sequence: int, position: int) -> int:
        left = position if self._edge.abilities.rewinds == "anywhere" else 0
        del self._held[sequence][left:]
        return left

    def close(self) -> None:
        self.closed = True


class Side(ScriptedEdge):
    """A scripted edge model that runs sequences side by side."""

    def __init__(self, script: Script, *, max_batch_ids: int = 512, rewinds: bool = True) -> None:
        abilities = EdgeAbilities(slots=64, rewinds="anywhere" if rewinds else "no")
        super().__init__(script, abilities=abilities)
        self.max_batch_ids = max_batch_ids
        self.made: list[ScriptedSequences] = []

    def sequences(self, width: int) -> ScriptedSequences:
        self.made.append(ScriptedSequences(self, width))
        return self.made[-1]


@pytest.fixture(autouse=True)
def sides(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(edge: EdgeModel, width: int) -> Sequences | None:
        return edge.sequences(width) if isinstance(edge, Side) else sequences_of(edge, width)

    monkeypatch.setattr("edgewise_lab.rollouts.sequences_of", found)


class Made(NamedTuple):
    """Rollouts, and a model that says what they should write."""

    rollouts: Rollouts
    model: EdgeModel


@pytest.fixture(params=["scripted", "side", "llama", "narrow", "cloud", "local"])
def made(request: pytest.FixtureRequest, bpe_path: Path) -> Iterator[Made]:
    scripted = Side(noise()) if request.param == "side" else ScriptedEdge(noise())
    if request.param == "cloud":
        yield Made(CloudRollouts(ScriptedCloud(noise()), width=3), scripted)
        return
    if request.param in ("scripted", "side"):
        with closing(edge_rollouts(scripted, 4)) as rollouts:
            sequential = request.param == "scripted"
            assert isinstance(rollouts, SequentialRollouts if sequential else BatchedRollouts)
            yield Made(rollouts, scripted)
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
    session = model.session()
    session.open(prefix.ids)
    while len(ids) < prefix.n and not (ids and ids[-1] in model.tokenizer.eos_ids):
        ids.append(session.step().proposed)
        session.extend(ids[-1:])
    session.close()
    return Continuation(tuple(ids))


def test_each_prefix_is_continued_as_by_a_session(made: Made) -> None:
    wanted = [by_steps(made.model, prefix) for prefix in prefixes()]
    for _ in range(2):  # what the first run left behind does not matter
        told: dict[int, Continuation] = {}
        found = made.rollouts.run(prefixes(), told.__setitem__)
        assert [c.ids for c in found] == [c.ids for c in wanted]
        assert told == dict(enumerate(found))
    assert made.rollouts.run([]) == []


def test_a_prefix_without_room(bpe_path: Path) -> None:
    with (
        LlamaModel(bpe_path, context=16, threads=1, gpu_layers=0) as model,
        closing(edge_rollouts(model)) as rollouts,
        pytest.raises(ContextOverflow, match="raise the context"),
    ):
        rollouts.run([Prefix(tuple(range(17)), 1)])


def test_a_continuation_ends_with_the_context(bpe_path: Path) -> None:
    """The last id may stand behind it, as in an answer of the decoder's."""
    asked = [Prefix(tuple(range(size)), 40) for size in (3, 9, 16)]
    with (
        LlamaModel(bpe_path, context=16, threads=1, gpu_layers=0, slots=2) as model,
        closing(edge_rollouts(model)) as together,
        closing(LocalCloud(LlamaModel(bpe_path, context=16, threads=1))) as cloud,
    ):
        ends = model.tokenizer.eos_ids
        several = [rollouts.run(asked) for rollouts in (SequentialRollouts(model), together)]
        several.append(CloudRollouts(cloud, width=1).run(asked))
    for found in several:
        assert [c.ids for c in found] == [c.ids for c in several[0]]
        lengths = [len(c.ids) for c in found if c.ids[-1] not in ends]
        assert lengths
        assert set(lengths) <= {14, 8, 1}


def test_the_first_failure_of_the_cloud_is_told_and_the_rest_is_kept() -> None:
    def fault(ask: int) -> CloudUnavailable | None:
        return CloudUnavailable("gone.") if ask == 5 else None

    told: dict[int, Continuation] = {}
    cloud = ScriptedCloud(noise(), fault=fault)
    with pytest.raises(CloudUnavailable):
        CloudRollouts(cloud, width=1).run(prefixes(), told.__setitem__)
    assert list(told) == [0, 1, 2, 3, 4]


some_prefixes = st.lists(
    st.builds(
        Prefix, st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), st.integers(1, 5)
    ),
    max_size=12,
)


def endless(ids: Sequence[int]) -> Floats:
    """As `noise`, never an end token."""
    logits = noise()(ids)
    logits[[EOS, EOT]] = -99.0
    return logits


class TestTogether:
    @given(
        asked=some_prefixes, width=st.integers(1, 5), room=st.integers(1, 9), rewinds=st.booleans()
    )
    def test_any_prefixes_in_any_width_are_continued_as_one_by_one(
        self, asked: list[Prefix], width: int, room: int, rewinds: bool
    ) -> None:
        edge = Side(noise(), max_batch_ids=room, rewinds=rewinds)
        rollouts = edge_rollouts(edge, width)
        told: dict[int, Continuation] = {}
        for _ in range(2):
            found = rollouts.run(asked, told.__setitem__)
            assert found == SequentialRollouts(ScriptedEdge(noise())).run(asked)
            assert told == dict(enumerate(found))
        rollouts.close()
        assert edge.made[0].closed
        assert edge.sessions == 0

    def test_neighbours_share_what_they_begin_with(self) -> None:
        start = tuple(range(100))
        asked = [Prefix((*start, number), 3) for number in range(8)]
        edge = Side(endless)
        edge_rollouts(edge, 2).run(asked)
        # Each sequence reads the start once, and of each prefix its own id and what is written.
        assert edge.made[0].computed == 2 * 100 + 8 * (1 + 2)

    def test_they_are_run_together(self) -> None:
        asked = [Prefix((number,), 6) for number in range(8)]
        edge = Side(endless)
        edge_rollouts(edge, 4).run(asked)
        assert edge.made[0].passes == 2 * 6

    def test_an_idle_sequence_takes_from_the_longest_queue(self) -> None:
        asked = [Prefix((number,), 1 if number < 6 else 8) for number in range(12)]
        edge = Side(endless)
        edge_rollouts(edge, 2).run(asked)
        assert edge.made[0].passes < 6 * 8 * 0.75

    def test_one_too_long_is_refused_before_any_is_begun(self) -> None:
        edge = Side(noise())
        asked = [Prefix((1,), 2), Prefix((1,) * (edge.context + 1), 1)]
        with pytest.raises(ContextOverflow) as caught:
            edge_rollouts(edge).run(asked)
        assert caught.value.setting == "ctx"
        assert edge.made[0].passes == 0

    def test_what_a_local_cloud_can_do_is_used(self) -> None:
        edge = Side(noise())
        with closing(LocalCloud(edge)) as cloud, closing(cloud_rollouts(cloud)) as rollouts:
            assert isinstance(rollouts, BatchedRollouts)
        assert edge.made[0].closed
