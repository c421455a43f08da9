"""`on_edge_error`: the cloud goes on from the same prefix, or the answer stops, at every token."""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from edgewise import Pair
from edgewise.cloud.base import CloudModel
from edgewise.costs.meter import Billing
from edgewise.costs.price import Price
from edgewise.edge.base import Floats
from edgewise.errors import CloudUnavailable, EdgeError
from edgewise.events import Finished, Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.health import Breaker
from edgewise.loop.one_cloud import Tier
from edgewise.loop.policy import Policy
from edgewise.prompts import Message
from edgewise.routers.untrained import MaxProb
from edgewise.testing import ScriptedCloud, ScriptedEdge, replying
from tests.doubles.served_edge import Event, LlamaEdge, llama_edge
from tests.doubles.wrapped_cloud import late
from tests.loop.test_speculate import other_vocabulary

ASKED, LENGTH = "Where is Honduras?", 12


@pytest.fixture
def served() -> Iterator[LlamaEdge]:
    with llama_edge() as served:
        yield served


def gone_at(served: LlamaEdge, at: int) -> None:
    """Every stream from now on ends before its token `at`, and nothing else is answered."""
    spoil: Callable[[Event, int], Event | None] = lambda event, number: (  # noqa: E731
        None if number > at else event
    )
    served.spoil = spoil
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


@pytest.mark.parametrize("more", [{}, {"on_edge_error": "cloud", "cloud_share": 0}])
@pytest.mark.parametrize("at", [0, 3])
def test_without_leave_the_answer_stops(served: LlamaEdge, at: int, more: dict[str, Any]) -> None:
    """The text so far was told; the error names the server."""
    with Pair(served.url, cloud="bundled", threshold=1.0 if not more else None, **more) as pair:
        gone_at(served, at)
        told: list[object] = []
        with pytest.raises(EdgeError) as caught:
            told += pair.stream(ASKED, max_tokens=LENGTH)
        assert served.url in caught.value.message
        gone_at(served, 1 << 30)
        served.reply = lambda path: None
        assert pair.ask(ASKED, max_tokens=3).usage.edge_tokens == 3


def test_a_local_conversation_goes_nowhere(served: LlamaEdge) -> None:
    with Pair(served.url, cloud="bundled", on_edge_error="cloud") as pair:
        gone_at(served, 2)
        asked = [Message(role="user", content=ASKED, local=True)]
        with pytest.raises(EdgeError):
            pair.ask(asked, max_tokens=LENGTH)


def test_the_cap_holds(served: LlamaEdge) -> None:
    with Pair(served.url, cloud="bundled", on_edge_error="cloud", max_cloud_tokens=4) as pair:
        gone_at(served, 2)
        told: list[Token] = []
        with pytest.raises(EdgeError):
            told.extend(e for e in pair.stream(ASKED, max_tokens=LENGTH) if isinstance(e, Token))
        assert sum(one.source == "cloud" for one in told) <= 4


PROMPT = "Q: sky? A:"


@pytest.mark.parametrize("priced", [True, False])
def test_neither_a_price_nor_a_pause_ends_what_the_cloud_alone_writes(priced: bool) -> None:
    """What only the cloud can write is not held to what the cloud alone would cost."""
    script, breaker = replying("blue sky " * 12, prompt=PROMPT), Breaker()

    def dying(ids: Sequence[int]) -> Floats:
        if len(ids) > len(PROMPT) + 3:
            raise EdgeError("the server is gone")
        return script(ids)

    price = Price(input=Decimal("0.28"), cached=Decimal("0.028"), output=Decimal("0.42"))
    cloud = ScriptedCloud(script) if priced else late(ScriptedCloud(script), [2])
    if not priced:
        breaker.failed(silent=True)
    decoder = Decoder(
        ScriptedEdge(dying),
        router=MaxProb(),
        policy=Policy(cloud_share=0.05, on_edge_error="cloud", deadline=60),
        cloud=cloud,
        breaker=breaker,
        billing=Billing(price) if priced else None,
    )
    assert len(decoder.generate(list(PROMPT.encode()), max_tokens=100).tokens) == 100


TEXT = "sky, 日本 sea"


def behind(*kinds: str) -> list[CloudModel]:
    """Clouds that write `TEXT`, by ids of the edge's or of their own, or fail."""
    gone = lambda _: CloudUnavailable("gone")  # noqa: E731
    made: dict[str, Callable[[], CloudModel]] = {
        "ids": lambda: ScriptedCloud(replying(TEXT, prompt=PROMPT)),
        "words": lambda: other_vocabulary(replying(TEXT, prompt=PROMPT)),
        "gone": lambda: ScriptedCloud(replying(TEXT, prompt=PROMPT), fault=gone),
    }
    return [made[kind]() for kind in kinds]


@pytest.mark.parametrize("kinds", [("words",), ("ids",), ("gone", "words")])
@pytest.mark.parametrize("at", range(3, 10))
def test_an_edge_that_is_lost_inside_a_character_leaves_nothing_of_it(
    at: int, kinds: Sequence[str]
) -> None:
    """A cloud of another vocabulary writes that anew; what nobody was shown is dropped."""
    script = replying(TEXT, prompt=PROMPT)

    def dying(ids: Sequence[int]) -> Floats:
        if len(ids) == len(PROMPT) + at:
            raise EdgeError("the server is gone")
        return script(ids)

    nearest, *further = behind(*kinds)
    policy = Policy(on_edge_error="cloud", threshold=0.9, span=2, deadline=60)
    decoder = Decoder(
        ScriptedEdge(dying),
        router=MaxProb(),
        policy=policy,
        cloud=nearest,
        tiers=[Tier(one, share=1.0) for one in further],
    )
    answer = decoder.generate(list(PROMPT.encode()))
    assert (answer.text, answer.finish_reason) == (TEXT, "stop")
    assert answer.tokens[at].reason == "edge_lost"


def test_later_answers_do_not_pay_for_it(served: LlamaEdge) -> None:
    with Pair(served.url, cloud="bundled", on_edge_error="cloud", cloud_share=0.05) as pair:
        gone_at(served, 2)
        with pair.stream(ASKED, max_tokens=LENGTH) as events:
            last = list(events)[-1]
            assert isinstance(last, Finished)
            assert events.budget.bucket > -1
