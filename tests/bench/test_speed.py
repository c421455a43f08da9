"""Speeds of a real engine and of scripted models: what is compared, and in which order."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgewise.bench.speed import measure, score_seconds
from edgewise.edge.base import Needs, Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.constant import Constant
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying


@pytest.fixture(scope="module")
def model(bpe_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(bpe_path, threads=1) as loaded:
        yield loaded


def test_the_loop_is_measured_against_the_engine_driven_bare(model: LlamaModel) -> None:
    decoder = Decoder(model, router=Constant(0.0), policy=Policy(threshold=1.0))
    found = measure(decoder, context=16, tokens=8, blocks=3)
    assert (found.context, found.tokens, found.blocks) == (16, 8, 3)
    assert found.native_tokens_per_second > 0
    assert found.edgewise_tokens_per_second > 0
    assert 0 < found.ratio_low <= found.ratio <= found.ratio_high


def test_the_bare_loop_leaves_the_model_as_it_was(model: LlamaModel) -> None:
    ids = model.tokenizer.encode("the thin")
    session = model.session(Needs.ENTROPY)
    session.open(ids)
    before = session.step().proposed
    session.close()
    assert model.bare_loop([1, 2, 3], 4) > 0
    again = model.session(Needs.ENTROPY)
    again.open(ids)
    assert again.step().proposed == before
    again.close()


class Slow:
    """A router that takes its time."""

    needs, top = Needs.NOTHING, 0

    def score(self, step: Step) -> float:
        """Always 0."""
        time.sleep(0.01)
        return 0.0


def test_a_score_is_timed_apart_from_its_step() -> None:
    edge = ScriptedEdge(noise())
    score, step = score_seconds(edge, Slow(), steps=5)
    assert score >= 0.01
    assert 0 < step < 0.01
    assert edge.sessions == 0


def test_a_short_context_bounds_the_steps() -> None:
    edge = ScriptedEdge(noise(), context=4)
    score, step = score_seconds(edge, Constant(0.5))
    assert score >= 0
    assert step >= 0
    assert edge.sessions == 0


def test_an_end_token_does_not_shorten_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both decode as many tokens, whatever the model would end with."""
    edge = ScriptedEdge(replying("", prompt="x" * 16))
    monkeypatch.setattr(edge, "bare_loop", lambda prompt, tokens: 100.0, raising=False)
    decoder = Decoder(edge, router=Constant(0.0), policy=Policy(threshold=1.0))
    found = measure(decoder, context=16, tokens=8, blocks=2)
    assert found.edgewise_tokens_per_second > 0
