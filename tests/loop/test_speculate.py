"""Speculating changes how long an answer takes, never the answer, in one vocabulary or two."""

import gc
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edgewise.addresses import bundled
from edgewise.cloud.adapter.ids import Adapter, adapted
from edgewise.cloud.base import CloudModel
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeAbilities, Rewinds
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.step import LogitsStep
from edgewise.errors import CloudTimeout
from edgewise.events import Consult, Event, Pending, RolledBack, Token
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.policy import INITIAL_BUCKET, Budget, Policy
from edgewise.prompts import Message, prompt_of
from edgewise.routers.untrained import Constant, MaxProb, Random
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


LINKED: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 500),
    "agreement": st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    "patience": st.lists(st.integers(0, 12), min_size=1, max_size=6),
    "ends": st.sampled_from([0, 12]),
}
"""Two scripts and a link, whatever its timing."""


@pytest.mark.parametrize("vocabulary", ["same", "other, in tokens", "other, in words"])
@given(
    threshold=st.sampled_from([0.2, 0.6, 0.9]),
    share=st.sampled_from([None, None, 0.05, 0.2, 0.5, 1.0]),
    cap=st.sampled_from([None, None, 0, 3, 9]),
    span=st.integers(1, 4),
    speculate=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 1.0]),
    stop=st.sampled_from([(), ("a",), ("\x00", "zz"), ("e", "qu"), (" b",), ("é", "日b")]),
    failing=st.sampled_from([0, 0, 2, 3]),
    **LINKED,
)
def test_the_answer_is_that_of_the_waiting_loop(
    vocabulary: str, seed: int, cap: int | None, share: float | None, speculate: int, **drawn: Any
) -> None:
    plain = noise if seed % 2 else lambda seed: forgetful(noise(seed))
    made = plain if vocabulary == "same" else lambda seed: speaking(noise(seed))
    edge, other = (ending(made(one), drawn["ends"]) for one in (seed, seed + 1000))
    script = agreeing(edge, other, drawn["agreement"])
    sampling = Sampling(temperature=drawn["temperature"], seed=seed)
    rules: dict[str, Any] = {"threshold": drawn["threshold"], "span": drawn["span"]}
    rules |= {"cloud_share": share, "max_cloud_tokens": cap, "deadline": 60}

    def run(drafts: int, patience: Sequence[int]) -> tuple[Answer, Budget]:
        cloud: CloudModel = ScriptedCloud(script)
        if vocabulary != "same":
            cloud = other_vocabulary(script, words=vocabulary.endswith("words"))
        decoder = Decoder(
            ScriptedEdge(edge),
            router=Random(seed),
            policy=Policy(speculate=drafts, **rules),
            cloud=late(cloud, patience, failing=drawn["failing"]),
            breaker=NeverOpen(),
        )
        events = decoder.stream(IDS, max_tokens=30, stop=drawn["stop"], sampling=sampling)
        return collect(events), events.budget

    waiting, left = run(0, [0])
    ahead, later = run(speculate, drawn["patience"])
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


def events_of(decoder: Decoder) -> tuple[list[Event], list[int], list[int]]:
    """All of them, the ids that were written and the places of drafts."""
    seen = list(decoder.stream(IDS, pending=True))
    written = [event.id for event in seen if isinstance(event, Token)]
    return seen, written, [event.index for event in seen if isinstance(event, Pending)]


def test_an_accepted_draft_waits_for_nothing() -> None:
    seen, written, drafts = events_of(drafting("blue sky", "blue sky", [5], unsure=(2,))[0])
    assert drafts == [3, 4, 5, 6, 7]
    assert not any(isinstance(event, RolledBack) for event in seen)
    assert written == [*b"blue sky", EOS]


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
    seen, written, _ = events_of(decoder)
    assert written == [*b"gray sky", EOS]
    (rolled_back,) = [event for event in seen if isinstance(event, RolledBack)]
    assert (rolled_back.index, rolled_back.consults) == (2, 1)
    assert rolled_back.tokens >= 2
    usage = collect(iter(seen)).usage
    assert (usage.wasted_tokens, usage.cloud_tokens) == (1, 2)
    assert len(large.asks) == 3


def test_consults_of_drafts_overlap() -> None:
    """Further consults are sent before the first one is answered."""
    decoder, large = drafting("blue sky today", "blue sky today", [16], unsure=(2, 4, 6))
    events = decoder.stream(IDS, pending=True)
    next(event for event in events if isinstance(event, Token) and event.index == 2)
    assert len(large.asks) == 3


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
    _, written, drafts = events_of(decoder)
    assert written == [*b"gray sky", EOS]
    assert bool(drafts) == (rewinds != "no")


"""A cloud with another vocabulary is asked between words, for words."""


def decoder_for(edge: str, cloud: str, *, unsure: tuple[int, ...], **policy: object) -> Decoder:
    return Decoder(
        ScriptedEdge(replying(edge, prompt=PROMPT, unsure=unsure)),
        router=MaxProb(),
        policy=Policy(threshold=0.3, deadline=60, **policy),  # type: ignore[arg-type]
        cloud=other_vocabulary(replying(cloud, prompt=PROMPT)),
    )


def of_cloud(answer: Answer) -> str:
    return "".join(token.text for token in answer.tokens if token.source == "cloud")


@pytest.mark.parametrize("speculate", [0, 8])
def test_a_consult_inside_a_word_is_deferred_to_the_next(speculate: int) -> None:
    decoder = decoder_for("the grey sky", "the grey sea", unsure=(6,), speculate=speculate)
    tokens = decoder.generate(IDS).tokens
    assert "".join(t.text for t in tokens) == "the grey sea"
    assert [t.index for t in tokens if t.reason == "mid_word"] == [6, 7]
    assert [t.reason for t in tokens[8:12]] == ["critical", "span", "span", "span"]
    assert [t.source for t in tokens[:9]] == ["edge"] * 8 + ["cloud"]


@pytest.mark.parametrize("speculate", [0, 8])
@pytest.mark.parametrize(("span", "words"), [(1, " gray"), (2, " gray sea"), (3, " gray sea,")])
def test_a_span_is_words(span: int, words: str, speculate: int) -> None:
    rules = {"span": span, "speculate": speculate}
    decoder = decoder_for("the grey sky.", "the gray sea, so", unsure=(3,), **rules)
    assert of_cloud(decoder.generate(IDS)) == words


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_the_share_holds_over_a_conversation(share: float) -> None:
    """But for the first credit and for the last word, which later answers would pay for."""
    edge = ending(speaking(noise(5)), 25)
    script = agreeing(edge, ending(speaking(noise(6)), 25), 0.5)
    budget, longest, written, cloud = Budget(), 0, 0, 0
    for seed in range(40):
        decoder = Decoder(
            ScriptedEdge(edge),
            router=Random(seed),
            policy=Policy(cloud_share=share, speculate=6),
            cloud=late(other_vocabulary(script), [2, 5]),
        )
        sampling = Sampling(temperature=1.0, seed=seed)
        events = decoder.stream(IDS, max_tokens=60, budget=budget, sampling=sampling)
        seen = list(events)
        budget, usage = events.budget, collect(iter(seen)).usage
        written += usage.edge_tokens + usage.cloud_tokens
        cloud += usage.cloud_tokens + usage.wasted_tokens
        longest = max([longest, *(e.answered for e in seen if isinstance(e, Consult))])
        assert cloud <= share * written + INITIAL_BUCKET + longest
    assert cloud > 0.5 * share * written


@pytest.mark.parametrize("cap", range(1, 8))
def test_a_cap_holds_inside_a_word(cap: int) -> None:
    decoder = decoder_for("a grey sky", "a great sea", unsure=(1,), span=2, max_cloud_tokens=cap)
    with decoder.stream(IDS) as events:
        answer = collect(events)
        paid = Budget().bucket - events.budget.bucket
    assert len(of_cloud(answer)) == cap
    # What is beyond it was brought as well.
    brought = len(" great") if cap == 1 else len([*" great sea", "the end"])
    assert answer.usage.cloud_tokens + answer.usage.wasted_tokens == paid == brought


@pytest.mark.parametrize("words", [False, True])
def test_a_cloud_that_writes_all_writes_its_own_text(words: bool) -> None:
    text = "It is naïve, 日本語 and so on: 42 times."
    small, model = ScriptedEdge(speaking(noise(3))), replying(text, prompt=PROMPT)
    cloud = other_vocabulary(model, words=words)
    decoder = Decoder(small, router=Constant(1.0), policy=Policy().cloud_alone(), cloud=cloud)
    answer = decoder.generate(IDS)
    assert (answer.text, answer.finish_reason) == (text, "stop")
    assert {token.source for token in answer.tokens} == {"cloud"}


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_real_models_of_two_vocabularies(bpe_path: Path, turned: bool, words: bool) -> None:
    """The pocket edge before a cloud of random weights, and such an edge before the pocket's."""
    paths = (bpe_path, bundled("cloud")) if turned else (bundled("edge"), bpe_path)
    with (
        LlamaModel(paths[0], threads=1) as small,
        closing(LocalCloud(LlamaModel(paths[1], threads=1))) as large,
    ):
        kind = WordAdapter if words else Adapter
        model: CloudModel = kind(large, own=large.model.tokenizer, edge=small.tokenizer)
        assert isinstance(adapted(large, small.tokenizer), Adapter)
        prompt = prompt_of(small.tokenizer, [Message("user", "Tell me about the heron.")])

        def run(speculate: int, patience: Sequence[int]) -> Answer:
            policy = Policy(threshold=0.8, deadline=60, speculate=speculate)
            cloud, breaker = late(model, patience), NeverOpen()
            decoder = Decoder(small, router=Random(7), policy=policy, cloud=cloud, breaker=breaker)
            seen = list(decoder.stream(prompt, max_tokens=48, pending=True))
            assert any(isinstance(event, Pending) for event in seen) == bool(speculate)
            return collect(iter(seen))

        waiting, ahead = run(0, [0]), run(8, [0, 5, 3, 9])
    assert reported(ahead) == reported(waiting)
    assert waiting.usage.cloud_calls
    assert waiting.usage.cloud_completion_tokens > 0
    # Random weights seldom come to a whole word.
    assert waiting.usage.cloud_tokens or not turned


def test_where_the_cloud_writes_no_word_the_edge_goes_on() -> None:
    """Nothing failed: the answer does not end where failures end it, nor are consults paused."""
    always = np.eye(OWN.size, dtype=np.float32)[ord("x")]
    decoder = Decoder(
        ScriptedEdge(speaking(noise(5))),
        router=Constant(1.0),
        policy=Policy(threshold=0.5, on_cloud_error="raise"),
        cloud=other_vocabulary(lambda ids: always, words=False),
    )
    answer = decoder.generate(IDS, max_tokens=40)
    assert len(answer.tokens) == 40
    assert {token.reason for token in answer.tokens} <= {"rejected", "mid_word"}
    assert sum(token.reason == "rejected" for token in answer.tokens) > 4
