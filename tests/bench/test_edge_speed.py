"""The measures of `edgewise bench edge` and of a router's card."""

from collections.abc import Iterator

import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.uncertainty import Entropy, MaxProb
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from edgewise_lab.bench.speed import measure, score_seconds


@pytest.fixture
def model() -> Iterator[LlamaModel]:
    with LlamaModel(bundled("edge"), threads=1, context=128) as loaded:
        yield loaded


def test_a_loop_is_measured_against_the_engine_s_own(model: LlamaModel) -> None:
    decoder = Decoder(model, router=MaxProb(), policy=Policy(threshold=1.0))
    speed = measure(decoder, context=16, tokens=8, blocks=2)
    assert (speed.context, speed.tokens, speed.blocks) == (16, 8, 2)
    assert speed.native_tokens_per_second > 0
    assert speed.edgewise_tokens_per_second > 0
    assert speed.ratio_low <= speed.ratio <= speed.ratio_high


def test_an_engine_without_a_loop_of_its_own_is_refused() -> None:
    decoder = Decoder(ScriptedEdge(noise()), router=MaxProb(), policy=Policy(threshold=1.0))
    with pytest.raises(UsageError, match="measure a GGUF"):
        measure(decoder, context=4, tokens=2, blocks=1)


@pytest.mark.parametrize("steps", [1, 20, 500])
def test_a_score_is_timed_on_any_engine(steps: int) -> None:
    edge = ScriptedEdge(replying("x" * 40, prompt="V"), context=64)
    score, step = score_seconds(edge, Entropy(), steps)
    assert 0 < score < 1
    assert 0 < step < 1
    assert edge.sessions == 0
