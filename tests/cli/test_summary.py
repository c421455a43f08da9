"""The line after an answer that the cloud verified."""

import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from edgewise.cli import render
from edgewise.errors import Fault
from edgewise.events import Finished, Reason, Timing, Token, Usage
from edgewise.pair import Pair
from edgewise.testing import ScriptedCloud, ScriptedEdge, replying


@pytest.fixture
def pair() -> Iterator[Pair]:
    script = replying("blue", prompt="sky? ")
    with Pair(ScriptedEdge(script), cloud=ScriptedCloud(script), cloud_share=0.1) as opened:
        opened.policy = replace(opened.policy, verify="on")
        yield opened


def token(index: int, reason: Reason | Fault, ratio: float | None = None) -> Token:
    return Token(
        index=index,
        id=97,
        text="a",
        source="cloud" if reason == "corrected" else "edge",
        score=None,
        logprob=None,
        seconds=0.1,
        wait=0.0,
        reason=reason,
        threshold=0.3,
        ratio=ratio,
    )


def told(pair: Pair, *reasons: Reason | Fault, share: float, ratio: float | None = None) -> str:
    """The summary of an answer whose second token has this ratio."""
    known = 1.0 if ratio is None else ratio
    tokens = [
        token(index, reason, known if reason in ("verified", "corrected") else None)
        for index, reason in enumerate(reasons)
    ]
    usage = Usage(
        prompt_tokens=5,
        edge_tokens=sum(one.source == "edge" for one in tokens),
        cloud_tokens=reasons.count("corrected"),
        verified_tokens=reasons.count("verified"),
        cloud_share=share,
        lowest_ratio=ratio,
        lowest_at=None if ratio is None else 1,
    )
    end = Finished(text="", finish_reason="stop", usage=usage, timing=Timing(total=2.0))
    line = render.summary(end, tokens, pair)
    assert "\n" not in line
    return line


def figures(line: str) -> list[str]:
    """The numbers in a line, without the time that it ends with."""
    return re.findall(r"[\d.]+\d%?|\d+%?", line.rpartition(" · ")[0])


def test_the_corrections_the_share_and_the_least_sure_token_are_told(pair: Pair) -> None:
    line = told(pair, "verified", "verified", "corrected", ratio=0.34, share=0.05)
    assert figures(line) == ["1", "3", "5.0%", "10%", "1", "0.34"]
    assert pair.cloud
    assert f"verified by {pair.cloud.name}:" in line
    # It counts over all answers.
    assert "cloud share 50.0%" in told(pair, "verified", "corrected", share=0.5)


def test_tokens_that_are_all_the_clouds_own_choice_have_no_least_sure_one(pair: Pair) -> None:
    line = told(pair, "verified", "verified", ratio=1.0, share=0.0)
    assert figures(line) == ["0", "2", "0.0%", "10%"]


def test_tokens_that_were_not_verified_are_told_with_their_reasons(pair: Pair) -> None:
    line = told(
        pair, "verified", "timeout", "timeout", "timeout", "circuit_open", "forced", share=0.0
    )
    assert figures(line)[4:] == ["3", "1"]
    assert "3 not verified: timeout" in line
    assert "1 not verified: consults" in line


def test_an_answer_that_routers_decided_has_its_own_line(pair: Pair) -> None:
    assert "verified" not in told(pair, "below_threshold", share=0.0)
    pair.policy = replace(pair.policy, verify="off")
    line = told(pair, "below_threshold", "critical", share=0.05)
    assert "verified" not in line
    assert figures(line)[:2] == ["2", "0"]
