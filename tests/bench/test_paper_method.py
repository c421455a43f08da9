"""The paper's method and the comparison with it, on scripted models."""

from collections.abc import Callable, Iterator

import pytest

from edgewise.bench.paper_method import Comparison, Every, PaperMethod, compare
from edgewise.edge.base import Needs
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.errors import CloudUnavailable, UsageError
from edgewise.routers.constant import Constant
from edgewise.testing.link import Link
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise.testing.scripted_engine import ScriptedEngine
from tests.gateway.running import gateway
from tests.llama_server_process import free_port

PROMPT = list(b"sky: ")
TEXT = "the sky is blue and so it stays"
TOKENS = 16


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    made = ScriptedEngine()
    yield made
    made.close()


def edge() -> ScriptedEdge:
    return ScriptedEdge(replying(TEXT, prompt="sky: "))


def connecting(engine: ScriptedEngine) -> Callable[[], LlamaServerEngine]:
    return lambda: LlamaServerEngine(engine.url)


def test_every_nth_token_is_asked_for() -> None:
    model = ScriptedEdge(replying(TEXT, prompt="sky: "))
    session = model.session(Needs.NOTHING)
    session.open(PROMPT)
    scores: list[float] = []
    for _ in range(9):
        step = session.step()
        scores.append(Every(3).score(step))
        session.extend([step.proposed])
    session.close()
    assert scores == [float(position % 3 == 0) for position in range(5, 14)]


def test_without_consults_it_writes_what_the_edge_writes(engine: ScriptedEngine) -> None:
    model = edge()
    written = PaperMethod(model, Constant(0.0), 0.5, connecting(engine)).generate(PROMPT, TOKENS)
    assert bytes(written) == TEXT.encode()[:TOKENS]
    assert engine.asked == 0
    assert model.sessions == 0


def test_it_takes_one_token_of_each_consult_for_which_the_whole_text_travels() -> None:
    asked: list[int] = []

    def script(ids: object) -> int:
        assert isinstance(ids, list)
        asked.append(len(ids))
        return ord("!")

    engine = ScriptedEngine(script=script)
    method = PaperMethod(edge(), Constant(1.0), 0.5, connecting(engine))
    assert method.generate(PROMPT, 4) == [ord("!")] * 4
    engine.close()
    assert asked == [5, 6, 7, 8]


def test_each_consult_makes_a_connection_of_its_own(engine: ScriptedEngine) -> None:
    made = 0

    def connect() -> LlamaServerEngine:
        nonlocal made
        made += 1
        return LlamaServerEngine(engine.url)

    PaperMethod(edge(), Constant(1.0), 0.5, connect).generate(PROMPT, 5)
    assert made == engine.asked == 5


def test_a_fault_of_the_engine_ends_it_and_frees_the_session() -> None:
    model = edge()
    method = PaperMethod(
        model, Constant(1.0), 0.5, lambda: LlamaServerEngine(f"http://127.0.0.1:{free_port()}")
    )
    with pytest.raises(CloudUnavailable):
        method.generate(PROMPT, 4)
    assert model.sessions == 0


def compared(url: str, *, done: Callable[[], None] = lambda: None, rounds: int = 2) -> Comparison:
    return compare(
        ScriptedEdge(replying("x" * 400, prompt="")),
        url,
        share=0.25,
        round_trip=0.02,
        engine_seconds=0.01,
        context=24,
        tokens=TOKENS,
        rounds=rounds,
        done=done,
    )


def test_both_are_compared_over_one_link(engine: ScriptedEngine) -> None:
    told: list[None] = []
    found = compared(engine.url, done=lambda: told.append(None))
    # One round more, which warms caches up.
    assert len(told) == 3
    assert (found.rounds, found.tokens, found.context) == (2, TOKENS, 24)
    assert found.share == pytest.approx(0.25, abs=0.07)
    assert 0 <= found.changed <= 1
    assert found.ratio_low <= found.ratio <= found.ratio_high
    assert found.paper > found.edge
    # A consult of the paper's pays a handshake besides the round trip.
    assert found.paper >= 0.25 * 2 * 0.03 * 0.5


def test_a_gateway_cannot_be_compared_with(engine: ScriptedEngine) -> None:
    with gateway([engine.url]) as running, pytest.raises(UsageError, match="is a gateway"):
        compared(running.url)


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
