"""The comparison with the paper's method: the bundled pair, a real engine, one link."""

from collections.abc import Callable, Iterator

import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError
from edgewise.testing.link import Link
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise_lab.bench.paper_method import Comparison, compare
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.running import gateway
from tests.llama_server_process import llama_server

TOKENS = 16


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    made = ScriptedEngine()
    yield made
    made.close()


@pytest.fixture(scope="module")
def edge() -> Iterator[LlamaModel]:
    with LlamaModel(bundled("edge"), context=256, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with llama_server(bundled("cloud")) as url:
        yield url


def compared(
    edge: LlamaModel,
    url: str,
    *,
    done: Callable[[], None] = lambda: None,
) -> Comparison:
    return compare(
        edge,
        url,
        share=0.25,
        round_trip=0.02,
        engine_seconds=0.01,
        context=24,
        tokens=TOKENS,
        rounds=2,
        done=done,
    )


def test_both_are_compared_over_one_link(edge: LlamaModel, server: str) -> None:
    told: list[None] = []
    found = compared(edge, server, done=lambda: told.append(None))
    # One round more, which warms caches up.
    assert len(told) == 3
    assert (found.rounds, found.tokens, found.context) == (2, TOKENS, 24)
    assert found.share == pytest.approx(0.25, abs=0.1)
    assert 0 <= found.changed <= 1
    assert found.ratio_low <= found.ratio <= found.ratio_high
    assert found.paper > found.edge
    # A consult of the paper's pays a handshake besides the round trip.
    assert found.paper >= 0.25 * 2 * 0.03 * 0.5


def test_a_gateway_cannot_be_compared_with(edge: LlamaModel, engine: ScriptedEngine) -> None:
    with gateway([engine.url]) as running, pytest.raises(UsageError, match="is a gateway"):
        compared(edge, running.url)


def test_the_link_is_closed_where_the_engine_shares_no_vocabulary(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Link] = []
    close = Link.close
    monkeypatch.setattr(Link, "close", lambda self: (closed.append(self), close(self)))

    class Other(ScriptedEdge):
        def __init__(self) -> None:
            super().__init__(replying("x", prompt=""))
            self.tokenizer.encode = lambda text, special=False: [1]  # type: ignore[method-assign]

    with pytest.raises(UsageError, match="vocabularies differ"):
        compare(
            Other(),
            engine.url,
            share=0.5,
            round_trip=0.0,
            engine_seconds=0.0,
            context=8,
            tokens=4,
            rounds=1,
        )
    assert len(closed) == 1
