"""Speculating changes how long an answer takes, never the answer, in one vocabulary or two."""

import gc
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edgewise.cloud.adapter.ids import Adapter
from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeAbilities, Rewinds
from edgewise.edge.step import LogitsStep
from edgewise.errors import CloudTimeout
from edgewise.events import Pending, RolledBack, Token
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.policy import Budget, Policy
from edgewise.routers.untrained import MaxProb, Random
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, ByteTokenizer, Script, ScriptedEdge, noise, replying
from tests.doubles.wrapped_cloud import NeverOpen, WordAdapter, late

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())
EDGE, OWN = ByteTokenizer(), ByteTokenizer("<other>")
BEGIN = [ord(c) for c in "abc   ,"] + ["é".encode()[0], "日".encode()[0]]
GO_ON = {"é".encode()[0]: "é".encode()[1]} | dict(
    zip("日".encode(), "日".encode()[1:], strict=False)
)


def reported(answer: Answer) -> list[object]:
    """What must not depend on speculation."""
    tokens = [
        (t.index, t.id, t.text, t.source, t.score, t.logprob, t.reason, t.edge, t.cloud)
        for t in answer.tokens
    ]
    usage = answer.usage
    counts = (usage.edge_tokens, usage.cloud_tokens, usage.correction_tokens)
    return [answer.text, answer.finish_reason, tokens, counts, usage.cloud_completion_tokens]


def forgetful(script: Script) -> Script:
    """Knows its position alone: what it would write behind another token is the same."""
    return lambda ids: script([len(ids)])


def ending(script: Script, every: int) -> Script:
    """Ends an answer behind some ids."""

    def says(ids: Sequence[int]):
        logits = script(ids).copy()
        if every and hash((len(ids), *ids[-3:])) % every == 0:
            logits[EOS] = 60.0
        return logits

    return says


def speaking(script: Script) -> Script:
    """Says in whole characters, mostly, what the script's logits choose."""

    def says(ids: Sequence[int]):
        logits = script(ids).copy()
        if ids[-1] in GO_ON and hash((len(ids), *ids[-3:])) % 40:
            logits[GO_ON[ids[-1]]] = 50.0
        else:
            logits[BEGIN] += np.float32(20)
        return logits

    return says


def agreeing(script: Script, other: Script, agreement: float) -> Script:
    """The cloud writes what the edge does, except at some places."""

    def says(ids: Sequence[int]):
        differs = hash((len(ids), ids[-1])) % 100 >= 100 * agreement
        return other(ids) if differs else script(ids)

    return says


def other_vocabulary(script: Script, *, words: bool = True) -> Adapter:
    """A cloud whose ids are not the edge's, asked in `words` or in tokens."""
    kind = WordAdapter if words else Adapter
    return kind(ScriptedCloud(script, tokenizer=OWN), own=OWN, edge=EDGE)


@pytest.mark.parametrize("vocabulary", ["same", "other, in tokens", "other, in words"])
@given(
    seed=st.integers(0, 500),
    agreement=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    patience=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    threshold=st.sampled_from([0.2, 0.6, 0.9]),
    share=st.sampled_from([None, None, 0.05, 0.2, 0.5, 1.0]),
    cap=st.sampled_from([None, None, 0, 3, 9]),
    span=st.integers(1, 4),
    speculate=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 1.0]),
    stop=st.sampled_from([(), ("a",), ("\x00", "zz"), ("e", "qu"), (" b",), ("é", "日b")]),
    ends=st.sampled_from([0, 12]),
    failing=st.sampled_from([0, 0, 2, 3]),
)
def test_the_answer_is_that_of_the_waiting_loop(
    vocabulary: str,
    seed: int,
    agreement: float,
    patience: list[int],
    ends: int,
    failing: int,
    cap: int | None,
    share: float | None,
    stop: tuple[str, ...],
    temperature: float,
    speculate: int,
    **rules: Any,
) -> None:
    """Whatever the link's timing: share, cap, spans, stops and failures drawn at random."""
    plain = noise if seed % 2 else lambda seed: forgetful(noise(seed))
    made = plain if vocabulary == "same" else lambda seed: speaking(noise(seed))
    edge, other = ending(made(seed), ends), ending(made(seed + 1000), ends)
    script = agreeing(edge, other, agreement)
    sampling = Sampling(temperature=temperature, seed=seed)

    def run(drafts: int, patience: Sequence[int]) -> tuple[Answer, Budget]:
        cloud: CloudModel = ScriptedCloud(script)
        if vocabulary != "same":
            cloud = other_vocabulary(script, words=vocabulary.endswith("words"))
        decoder = Decoder(
            ScriptedEdge(edge),
            router=Random(seed),
            policy=Policy(
                cloud_share=share, max_cloud_tokens=cap, deadline=60, speculate=drafts, **rules
            ),
            cloud=late(cloud, patience, failing=failing),
            breaker=NeverOpen(),
        )
        with decoder.stream(IDS, max_tokens=30, stop=stop, sampling=sampling) as events:
            return collect(events), events.budget

    waiting, left = run(0, [0])
    ahead, later = run(speculate, patience)
    assert reported(ahead) == reported(waiting)
    assert ahead.usage.cloud_calls >= waiting.usage.cloud_calls
    # What was wasted on the way is paid for by the next answer.
    wasted = ahead.usage.wasted_tokens - waiting.usage.wasted_tokens
    assert wasted >= 0
    assert left.bucket - later.bucket == pytest.approx(wasted if share is not None else 0)
    assert later.charged == left.charged
    if cap is not None:
        for answer in (waiting, ahead):
            assert answer.usage.cloud_tokens <= cap
            if vocabulary == "same":  # the length of a word is not known before it is there
                assert answer.usage.cloud_tokens + answer.usage.wasted_tokens <= cap


def drafting(
    edge: str, cloud: str, patience: Sequence[int], *, unsure: Sequence[int] = (), **policy: Any
) -> tuple[Decoder, ScriptedCloud]:
    large = ScriptedCloud(replying(cloud, prompt=PROMPT))
    small = ScriptedEdge(replying(edge, prompt=PROMPT, unsure=unsure))
    rules = Policy(**{"threshold": 0.3, "speculate": 8, "deadline": 60, **policy})
    return Decoder(small, router=MaxProb(), policy=rules, cloud=late(large, patience)), large


def test_an_accepted_draft_waits_for_nothing() -> None:
    decoder, _ = drafting("blue sky", "blue sky", [5], unsure=(2,))
    with decoder.stream(IDS, pending=True) as events:
        seen = list(events)
    assert [event.index for event in seen if isinstance(event, Pending)] == [3, 4, 5, 6, 7]
    assert not any(isinstance(event, RolledBack) for event in seen)
    assert [e.id for e in seen if isinstance(e, Token)] == [*b"blue sky", EOS]


@pytest.mark.parametrize("span", [4, 16])
def test_the_steps_of_confirmed_drafts_are_let_go(span: int) -> None:
    """Each may hold a copy of all its logits."""

    def held() -> int:
        return sum(type(one) is LogitsStep for one in gc.get_objects())

    text = "blue sky " * 50
    decoder, _ = drafting(text, text, [20], unsure=range(0, len(text), 20), span=span, speculate=20)
    most = 0
    gc.collect()
    # Only what is made from here on is looked through.
    gc.freeze()
    try:
        for event in decoder.stream(IDS):
            if isinstance(event, Token) and event.index % 10 == 0:
                most = max(most, held())
    finally:
        gc.unfreeze()
    assert 4 < most < 25


def test_a_rejected_draft_is_rolled_back() -> None:
    decoder, large = drafting("grey sky", "gray sky", [4], unsure=(2, 4))
    with decoder.stream(IDS, pending=True) as events:
        seen = list(events)
    assert [e.id for e in seen if isinstance(e, Token)] == [*b"gray sky", EOS]
    (rolled_back,) = [event for event in seen if isinstance(event, RolledBack)]
    assert (rolled_back.index, rolled_back.consults) == (2, 1)
    assert rolled_back.tokens >= 2
    assert collect(iter(seen)).usage.wasted_tokens == 1
    assert collect(iter(seen)).usage.cloud_tokens == 2
    assert len(large.asks) == 3


def test_consults_of_drafts_overlap() -> None:
    """Further consults are sent before the first one is answered."""
    decoder, large = drafting("blue sky today", "blue sky today", [16], unsure=(2, 4, 6))
    sent = []
    with decoder.stream(IDS, pending=True) as events:
        for event in events:
            sent += [len(large.asks)] if isinstance(event, Token) and event.index == 2 else []
    assert sent == [3]


def test_a_deadline_ends_the_wait_and_keeps_the_drafts() -> None:
    text = "blue sky today"
    decoder, _ = drafting(text, "gray", [0], unsure=(2,))
    decoder.tiers[0].cloud = ScriptedCloud(replying("gray", prompt=PROMPT), delay=30.0)
    decoder.policy = Policy(threshold=0.3, speculate=16, deadline=0.2)
    answer = decoder.generate(IDS)
    assert (answer.text, answer.tokens[2].reason) == (text, CloudTimeout.reason)


@pytest.mark.parametrize("rewinds", ["anywhere", "checkpoints", "no"])
def test_an_edge_that_cannot_roll_back_does_not_speculate(rewinds: Rewinds) -> None:
    decoder, _ = drafting("", "gray sky", [4])
    script = replying("grey sky", prompt=PROMPT, unsure=(2, 4))
    decoder.edge = ScriptedEdge(script, abilities=EdgeAbilities(rewinds=rewinds))
    with decoder.stream(IDS, pending=True) as events:
        seen = list(events)
    assert [e.id for e in seen if isinstance(e, Token)] == [*b"gray sky", EOS]
    assert any(isinstance(e, Pending) for e in seen) == (rewinds != "no")
