"""Speeds of a real engine and of scripted models: what is compared, and in which order."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks import speed
from benchmarks.speed import bare, measure
from edgewise.edge.base import EdgeModel, Needs, Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.sequence import Outputs, SequenceCache
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import ScriptedEdge, replying


@pytest.fixture(scope="module")
def model(bpe_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(bpe_path, threads=1) as loaded:
        yield loaded


def decoder_of(edge: EdgeModel) -> Decoder:
    return Decoder(edge, router=Constant(0.0), policy=Policy(threshold=1.0))


def test_the_loop_is_measured_against_the_engine_driven_bare(model: LlamaModel) -> None:
    decoder = decoder_of(model)
    found = measure(decoder, context=16, tokens=8, blocks=3)
    assert (found.context, found.tokens, found.blocks) == (16, 8, 3)
    assert found.native_tokens_per_second > 0
    assert found.edgewise_tokens_per_second > 0
    assert 0 < found.ratio_low <= found.ratio <= found.ratio_high
    assert found.undetected >= 0
    assert found.processor is not None
    assert 0 < found.processor.low <= found.processor.median <= found.processor.high
    assert found.same_ids


def test_the_bare_loop_leaves_the_model_as_it_was(model: LlamaModel) -> None:
    ids = model.tokenizer.encode("the thin")
    proposed: list[int] = []
    for tokens in (4, 0):
        with closing(model.session(Needs.ENTROPY)) as session:
            session.open(ids)
            proposed.append(session.step().proposed)
        if tokens:
            assert len(list(bare(decoder_of(model), [1, 2, 3], tokens))) == tokens + 1
    assert proposed[0] == proposed[1]
    # One that is left gives its place back.
    loop = bare(decoder_of(model), [1, 2, 3], 8)
    next(loop)
    with pytest.raises(UsageError, match="in use"):
        model.session()
    loop.close()
    model.session().close()


def test_where_prefixes_are_kept_a_prompt_is_read_once(
    bpe_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    run = SequenceCache.run

    def counted(cache: SequenceCache, ids: Sequence[int], outputs: Outputs, **more: Any) -> Any:
        read.append(len(ids) if outputs == "none" else 0)
        return run(cache, ids, outputs, **more)

    monkeypatch.setattr(SequenceCache, "run", counted)
    with LlamaModel(bpe_path, threads=1, keep_prefixes=True) as model:
        assert measure(decoder_of(model), context=40, tokens=4, blocks=5).same_ids
    assert sum(read) == 39


def test_a_loss_is_seen_and_so_is_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(decoder: Decoder, prompt: Sequence[int], tokens: int) -> Iterator[int]:
        for _ in range(tokens + 1):
            time.sleep(0.002)
            yield 0

    monkeypatch.setattr(speed, "bare", quick)
    edge = ScriptedEdge(replying("", prompt="x" * 16))
    found = measure(
        Decoder(edge, router=Slow(), policy=Policy(threshold=1.0)), context=16, tokens=2, blocks=5
    )
    assert found.ratio < 0.8
    assert not found.same_ids


class Slow:
    """A router that takes its time."""

    needs, top = Needs.NOTHING, 0

    def score(self, step: Step) -> float:
        time.sleep(0.01)
        return 0.0
