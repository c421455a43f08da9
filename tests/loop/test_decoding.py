"""The loop, on scripted models: provenance, budget, stops, faults, and rewinding everywhere."""

from typing import Any

import pytest

from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    ContextOverflow,
    UsageError,
)
from edgewise.events import Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.health import Breaker
from edgewise.loop.policy import Policy
from edgewise.loop.state import ENDLESS
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import EOS, ScriptedEdge, replying
from tests.loop.test_consults import IDS, PROMPT, asking, cloud_saying

FAULTS = [CloudUnavailable, CloudTimeout, CloudRefused, CloudRejected, CloudProtocolError]


def test_the_cloud_writes_the_critical_token_and_no_other() -> None:
    result = asking(cloud_saying("gray."), text="grey.", unsure=(2,)).generate(IDS)
    assert result.text == "gray."
    assert [t.source for t in result.tokens].count("cloud") == 1
    assert result.tokens[2].reason == "critical"
    assert result.tokens[2].edge
    assert result.tokens[-1].id == EOS
    assert result.finish_reason == "stop"
    assert result.usage.correction_tokens == 1
    assert result.usage.cloud_share == 1 / 6


def test_without_a_cloud_the_edge_writes_everything() -> None:
    result = asking(None).generate(IDS)
    assert result.text == "blue"
    assert {t.reason for t in result.tokens} == {"no_cloud"}


def test_a_stop_string_inside_a_span_wastes_the_rest() -> None:
    result = asking(cloud_saying("ab\ncdefgh"), Policy(span=8)).generate(IDS, stop=["\n"])
    assert result.text == "ab"
    assert result.usage.wasted_tokens == 5
    assert result.finish_reason == "stop"


def test_max_tokens_and_context_end_an_answer() -> None:
    edge = ScriptedEdge(replying("abcdefgh", prompt=PROMPT), context=len(IDS) + 3)
    decoder = Decoder(edge, router=Constant(1.0), policy=Policy())
    assert decoder.generate(IDS, max_tokens=2).text == "ab"
    full = decoder.generate(IDS)
    assert full.finish_reason == "length"
    assert full.text == "abcd"


def test_text_held_for_a_stop_string_or_a_character_is_released_at_the_end() -> None:
    decoder = asking(None, text="a\né")
    assert decoder.generate(IDS, stop=["\n\n"]).text == "a\né"
    assert decoder.generate(IDS, max_tokens=3).text == "a\n\ufffd"
    assert decoder.generate(IDS, max_tokens=2, stop=["\n\n"]).text == "a\n"


def test_nothing_is_computed_twice() -> None:
    decoder = asking(cloud_saying("blue sky"), text="blue sky", unsure=(1, 4))
    result = decoder.generate(IDS)
    assert decoder.edge.computed == len(IDS) + len(result.tokens) - 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_token_leaves_the_edge_s_token(fault: type[CloudError]) -> None:
    text = "blue sky"
    for at in range(len(text) + 1):
        cloud = cloud_saying(text, fault=lambda ask, at=at: fault("x") if ask == at else None)
        result = asking(cloud, text="BLUE SKY").generate(IDS)
        assert len(result.tokens) == len(text) + 1
        assert result.tokens[at].source == "edge"
        assert result.tokens[at].reason == fault.reason
        assert sum(t.source == "edge" for t in result.tokens) == 1
        assert result.usage.failed_calls == 1


def test_on_cloud_error_raise_stops_and_frees_the_session() -> None:
    cloud = cloud_saying("blue", fault=lambda ask: CloudUnavailable("gone"))
    decoder = asking(cloud, Policy(on_cloud_error="raise"))
    # A pause after failures would let the next answers go on without it, unnoticed.
    for _ in range(6):
        with pytest.raises(CloudUnavailable):
            decoder.generate(IDS)
    assert decoder.edge.sessions == 0  # type: ignore[attr-defined]
    assert decoder.tiers[0].breaker.is_open


def test_the_breaker_pauses_consults_and_a_probe_finds_the_way_back() -> None:
    now = [0.0]
    failing = [True]
    cloud = cloud_saying(
        "b" * 20, fault=lambda ask: CloudUnavailable("gone") if failing[0] else None
    )
    decoder = asking(cloud, text="e" * 20, breaker=Breaker(clock=lambda: now[0]))
    reasons = []
    with decoder.stream(IDS, max_tokens=12) as events:
        for event in events:
            if isinstance(event, Token):
                reasons.append(event.reason)
                if event.index == 5:
                    now[0], failing[0] = 100.0, False
    assert reasons[:3] == ["unavailable"] * 3
    assert reasons[3:6] == ["circuit_open"] * 3
    assert reasons[6:] == ["critical"] * 6


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ([], {}, UsageError),
        (IDS, {"max_tokens": 0}, UsageError),
        (IDS, {"max_tokens": -3}, UsageError),
        (IDS, {"stop": [""]}, UsageError),
        (IDS * 600, {}, ContextOverflow),
    ],
)
def test_bad_input_is_refused_and_frees_the_session(
    prompt: list[int], options: dict[str, Any], error: type[Exception]
) -> None:
    decoder = asking(None)
    with pytest.raises(error):
        decoder.stream(prompt, **options)
    assert decoder.edge.sessions == 0  # type: ignore[attr-defined]


CIRCLE = "So it is said, and "


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (f"Well:\n{CIRCLE * 60}", len(f"Well:\n{CIRCLE}") + ENDLESS),
        ("0" * 600, 1 + ENDLESS),
        (CIRCLE * 12, None),  # so much may be meant
        ("".join(f"{n} is a number, " for n in range(60)), None),
    ],
)
@pytest.mark.parametrize("who", ["edge", "cloud", "drafted"])
def test_an_answer_that_goes_round_in_circles_is_cut(
    text: str, written: int | None, who: str
) -> None:
    """Whoever writes it, and wherever it goes: in a pipe and behind a server, too."""
    policy = Policy(threshold=0.5, span=16, speculate=8 * (who == "drafted"))
    cloud = cloud_saying(text) if who != "edge" else None
    answer = asking(cloud, policy, text=text).generate(IDS)
    assert answer.usage.repeats == (written is not None)
    assert answer.finish_reason == ("length" if written else "stop")
    assert len(answer.tokens) == (written or len(text) + 1)
    assert text.startswith(answer.text)


def test_a_circle_of_the_prompt_is_none_of_the_answer() -> None:
    prompt = CIRCLE * 40
    decoder = Decoder(
        ScriptedEdge(replying(CIRCLE, prompt=prompt)), router=Constant(0.0), policy=Policy()
    )
    assert decoder.generate(list(prompt.encode())).finish_reason == "stop"
