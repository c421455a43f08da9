"""An edge without a KV cache: it answers the same, and reads everything for every token."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edgewise.edge.base import EdgeModel
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.uncertainty import Entropy
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from edgewise_lab.bench.pace import PacedEdge
from edgewise_lab.bench.uncached import UncachedEdge

PROMPT = list(b"sky: ")


class Passes:
    """A pace of no time that notes how many ids each pass reads."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def of(self, ids: int) -> float:
        """Seconds."""
        self.ids.append(ids)
        return 0.0


def answered(edge: Any, cloud: ScriptedCloud | None = None, run_ahead: int = 0) -> list[int]:
    policy = Policy(threshold=0.5, run_ahead=run_ahead)
    decoder = Decoder(edge, router=Entropy(), policy=policy, cloud=cloud)
    return [token.id for token in decoder.generate(PROMPT, max_tokens=12).tokens]


def test_each_pass_reads_all_there_is() -> None:
    passes = Passes()
    text = "is blue and so"
    edge: Any = UncachedEdge(PacedEdge(ScriptedEdge(replying(text, prompt="sky: ")), passes))  # type: ignore[arg-type]
    assert bytes(answered(edge)) == text.encode()[:12]
    assert passes.ids == [len(PROMPT) + n for n in range(12)]


@given(st.integers(0, 255), st.sampled_from([0, 4]))
def test_an_answer_is_the_same_without_a_cache(seed: int, run_ahead: int) -> None:
    def cloud() -> ScriptedCloud:
        return ScriptedCloud(noise(seed + 1))

    model: EdgeModel = ScriptedEdge(noise(seed))
    assert answered(UncachedEdge(model), cloud(), run_ahead) == answered(model, cloud(), run_ahead)


def test_its_sessions_are_the_models_own() -> None:
    model = ScriptedEdge(noise())
    answered(UncachedEdge(model))
    assert model.sessions == 0
