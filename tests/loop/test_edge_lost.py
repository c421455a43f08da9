"""`on_edge_error`: the cloud goes on from the same prefix, or the answer stops, at every token."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from edgewise import Pair
from edgewise.cloud.base import CloudModel
from edgewise.costs.meter import Billing
from edgewise.costs.price import price_of
from edgewise.edge.base import Floats
from edgewise.errors import CloudUnavailable, EdgeError
from edgewise.events import Event, Finished, Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.health import Breaker
from edgewise.loop.one_cloud import Tier
from edgewise.loop.policy import Policy
from edgewise.prompts import Message
from edgewise.routers.untrained import MaxProb
from edgewise.testing import ScriptedCloud, ScriptedEdge, replying
from edgewise.testing.scripted_edge import Script
from tests.doubles.served_edge import LlamaEdge, llama_edge
from tests.doubles.wrapped_cloud import late
from tests.loop.test_speculate import other_vocabulary

ASKED, LENGTH = "Where is Honduras?", 12


@pytest.fixture
def served() -> Iterator[LlamaEdge]:
    with llama_edge() as served:
        yield served


def gone_at(served: LlamaEdge, at: int) -> None:
    """Every stream from now on ends before its token `at`, and nothing else is answered."""
    served.spoil = lambda event, number: None if number > at else event
    served.reply = lambda path: b"{" if path == "/completion" else None


@pytest.mark.parametrize("how", [{"threshold": 0.5}, {"threshold": 0.7, "speculate": 4}])
@pytest.mark.parametrize("at", range(6))
def test_the_cloud_goes_on_from_the_same_prefix(
    served: LlamaEdge, at: int, how: dict[str, Any]
) -> None:
    with Pair(served.url, cloud="bundled", on_edge_error="cloud", **how) as pair:
        gone_at(served, at)
        prompt = pair.prompt(ASKED)
        answer = pair.ask(ASKED, max_tokens=LENGTH)
        lost = next(i for i, one in enumerate(answer.tokens) if one.reason == "edge_lost")
        assert all(one.source == "cloud" for one in answer.tokens[lost:])
        assert answer.usage.edge_error is not None
        assert served.url in answer.usage.edge_error
        assert answer.usage.edge_tokens + answer.usage.cloud_tokens == len(answer.tokens)
        written = [one.id for one in answer.tokens]
    with Pair(cloud="bundled", cloud_share=1.0) as cloud:
        left = LENGTH - lost
        alone = cloud.ask([*prompt.ids, *written[:lost]], max_tokens=left)
    assert written[lost:] == [one.id for one in alone.tokens]
    assert answer.finish_reason == alone.finish_reason


@pytest.mark.parametrize("more", [{"threshold": 1.0}, {"on_edge_error": "cloud", "cloud_share": 0}])
@pytest.mark.parametrize("at", [0, 3])
def test_without_leave_the_answer_stops(served: LlamaEdge, at: int, more: dict[str, Any]) -> None:
    with Pair(served.url, cloud="bundled", **more) as pair:
        gone_at(served, at)
        with pytest.raises(EdgeError) as caught:
            list(pair.stream(ASKED, max_tokens=LENGTH))
        assert served.url in caught.value.message
        gone_at(served, 1 << 30)
        served.reply = lambda path: None
        assert pair.ask(ASKED, max_tokens=3).usage.edge_tokens == 3


def test_a_local_conversation_goes_nowhere_and_the_cap_holds(served: LlamaEdge) -> None:
    with Pair(served.url, cloud="bundled", on_edge_error="cloud", max_cloud_tokens=4) as pair:
        gone_at(served, 2)
        told: list[Event] = []
        with pytest.raises(EdgeError):
            pair.ask([Message(role="user", content=ASKED, local=True)], max_tokens=LENGTH)
        with pytest.raises(EdgeError):
            told.extend(pair.stream(ASKED, max_tokens=LENGTH))
    assert sum(isinstance(one, Token) and one.source == "cloud" for one in told) <= 4


PROMPT, TEXT = "Q: sky? A:", "sky, 日本 sea"


def lost(script: Script, at: int, *clouds: CloudModel, **options: Any) -> Decoder:
    """A pair of an edge that is gone from its token `at` on, and clouds."""

    def dying(ids: Sequence[int]) -> Floats:
        if len(ids) >= len(PROMPT) + at:
            raise EdgeError("the server is gone")
        return script(ids)

    parts = {name: options.pop(name, None) for name in ("breaker", "billing")}
    policy, router = Policy(on_edge_error="cloud", deadline=60, **options), MaxProb()
    tiers = [Tier(one, share=1.0) for one in clouds[1:]]
    return Decoder(
        ScriptedEdge(dying), router=router, policy=policy, cloud=clouds[0], tiers=tiers, **parts
    )


@pytest.mark.parametrize("priced", [True, False])
def test_neither_a_price_nor_a_pause_ends_what_the_cloud_alone_writes(priced: bool) -> None:
    """What only the cloud can write is not held to what the cloud alone would cost."""
    script, breaker = replying("blue sky " * 12, prompt=PROMPT), Breaker()
    cloud = ScriptedCloud(script) if priced else late(ScriptedCloud(script), [2])
    if not priced:
        breaker.failed(silent=True)
    billing = Billing(price_of("0.28,0.028,0.42")) if priced else None
    decoder = lost(script, 4, cloud, cloud_share=0.05, breaker=breaker, billing=billing)
    assert len(decoder.generate(list(PROMPT.encode()), max_tokens=100).tokens) == 100


def behind(kind: str) -> CloudModel:
    """A cloud that writes `TEXT`, by ids of the edge's or of its own, or fails."""
    script = replying(TEXT, prompt=PROMPT)
    if kind == "words":
        return other_vocabulary(script)
    return ScriptedCloud(script, fault=lambda _: CloudUnavailable("x") if kind == "gone" else None)


@pytest.mark.parametrize("kinds", [("words",), ("ids",), ("gone", "words")])
@pytest.mark.parametrize("at", range(3, 10))
def test_an_edge_that_is_lost_inside_a_character_leaves_nothing_of_it(
    at: int, kinds: Sequence[str]
) -> None:
    """A cloud of another vocabulary writes that anew; what nobody was shown is dropped."""
    clouds, script = map(behind, kinds), replying(TEXT, prompt=PROMPT)
    decoder = lost(script, at, *clouds, threshold=0.9, span=2)
    answer = decoder.generate(list(PROMPT.encode()))
    assert (answer.text, answer.finish_reason) == (TEXT, "stop")
    assert answer.tokens[at].reason == "edge_lost"


def test_later_answers_do_not_pay_for_it(served: LlamaEdge) -> None:
    with Pair(served.url, cloud="bundled", on_edge_error="cloud", cloud_share=0.05) as pair:
        gone_at(served, 2)
        events = pair.stream(ASKED, max_tokens=LENGTH)
        assert isinstance(list(events)[-1], Finished)
        assert events.budget.bucket > -1
