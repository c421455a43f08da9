"""The comparison with the paper's method: the bundled pair, a real engine, one link."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paper_demo import (
    Comparison,
    PlainCloud,
    TextCompletions,
    UncachedEdge,
    compare,
)
from edgewise.addresses import bundled
from edgewise.completion import Completion
from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import LlamaModel
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.uncertainty import Entropy
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, ByteTokenizer, ScriptedEdge, noise, replying
from edgewise_lab.bench.pace import PacedEdge
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.scripted_text import Retold, ScriptedText
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


PROMPT = list(b"sky: ")


class Passes:
    """A pace of no time that notes how many ids each pass reads."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def of(self, ids: int) -> float:
        """Seconds."""
        self.ids.append(ids)
        return 0.0


def answered(edge: Any, cloud: ScriptedCloud | None = None, speculate: int = 0) -> list[int]:
    policy = Policy(threshold=0.5, speculate=speculate)
    decoder = Decoder(edge, router=Entropy(), policy=policy, cloud=cloud)
    return [token.id for token in decoder.generate(PROMPT, max_tokens=12).tokens]


def test_each_pass_reads_all_there_is() -> None:
    passes = Passes()
    text = "is blue and so"
    edge: Any = UncachedEdge(PacedEdge(ScriptedEdge(replying(text, prompt="sky: ")), passes))  # type: ignore[arg-type]
    assert bytes(answered(edge)) == text.encode()[:12]
    assert passes.ids == [len(PROMPT) + n for n in range(12)]


@given(st.integers(0, 255), st.sampled_from([0, 4]))
def test_an_answer_is_the_same_without_a_cache(seed: int, speculate: int) -> None:
    def cloud() -> ScriptedCloud:
        return ScriptedCloud(noise(seed + 1))

    model: EdgeModel = ScriptedEdge(noise(seed))
    assert answered(UncachedEdge(model), cloud(), speculate) == answered(model, cloud(), speculate)


TEXT = "<|user|>hi<|end|><|assistant|>naïve"
"""In the form that the scripted API reads."""

IDS = list(TEXT.encode())
BYTES = ByteTokenizer()


def retold(text: str, reason: str) -> Retold:
    return Retold(lambda reply: {**reply, "choices": [{"text": text, "finish_reason": reason}]})


def written(server: ScriptedText, ids: list[int] = IDS, n: int = 1) -> Completion:
    async def asked() -> Completion:
        engine = TextCompletions(server.url, BYTES)
        try:
            return await engine.complete(ids, n, Sampling())
        finally:
            await engine.close()

    return asyncio.run(asked())


@pytest.mark.parametrize(
    ("ids", "text"), [(IDS, TEXT), (IDS[:-3], TEXT[:-3] + "\N{REPLACEMENT CHARACTER}")]
)
def test_the_whole_text_is_sent(ids: list[int], text: str) -> None:
    with closing(ScriptedText("completions")) as server:
        written(server, ids)
        path, body = server.requests[-1]
    assert path == "/v1/completions"
    sent = json.loads(body)
    assert (sent["prompt"], sent["max_tokens"], sent["temperature"]) == (text, 1, 0)


@pytest.mark.parametrize(
    ("text", "reason", "ids", "stopped"),
    [
        # The engine's one token is several of the device's, of which one is kept.
        ("blue", "length", b"b", False),
        ("", "stop", b"", True),
        # No whole character.
        ("", "length", b"\xef", False),
    ],
)
def test_one_token_of_what_comes_back_is_kept(
    text: str, reason: str, ids: bytes, stopped: bool
) -> None:
    with closing(ScriptedText("completions", fault=lambda _: retold(text, reason))) as server:
        completion = written(server)
    assert (bytes(completion.ids), completion.stopped) == (ids, stopped)
    completion.check(asked=1, prompt=len(IDS), may_be_empty=not ids)


def test_an_answer_that_ended_ends_with_the_devices_own_token() -> None:
    with closing(ScriptedText("completions", fault=lambda _: retold("", "stop"))) as server:
        cloud = PlainCloud(TextCompletions(server.url, BYTES), BYTES)
        with closing(cloud):
            asked = cloud.open(Prompt(tuple(IDS))).ask(IDS, 1, Sampling(), 30)
            assert asked.result().ids == (EOS,)
