"""Consults of a cloud with another vocabulary: between words, for words."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.cloud.adapter.ids import Adapter, adapted
from edgewise.cloud.base import CloudModel
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.events import Consult, Pending
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.policy import INITIAL_BUCKET, Budget, Policy
from edgewise.prompts import Message, prompt_of
from edgewise.routers.untrained import Constant, MaxProb, Random
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from tests.doubles.wrapped_cloud import NeverOpen, WordAdapter, late
from tests.loop.test_speculate import IDS, OWN, PROMPT, agreeing, ending, other_vocabulary, speaking


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
    answer = decoder.generate(IDS)
    assert answer.text == "the grey sea"
    assert [t.index for t in answer.tokens if t.reason == "mid_word"] == [6, 7]
    assert [t.reason for t in answer.tokens[8:12]] == ["critical", "span", "span", "span"]
    assert [t.source for t in answer.tokens[:9]] == ["edge"] * 8 + ["cloud"]


@pytest.mark.parametrize("speculate", [0, 8])
@pytest.mark.parametrize(("span", "words"), [(1, " gray"), (2, " gray sea"), (3, " gray sea,")])
def test_a_span_is_words(span: int, words: str, speculate: int) -> None:
    decoder = decoder_for(
        "the grey sky.", "the gray sea, so", unsure=(3,), span=span, speculate=speculate
    )
    assert of_cloud(decoder.generate(IDS)) == words


def test_the_share_counts_the_edges_tokens_and_the_clouds_stand_beside() -> None:
    with decoder_for("the grey sky", "the gray sky", unsure=(3,)).stream(IDS) as events:
        seen = list(events)
    usage = collect(iter(seen)).usage
    assert (usage.cloud_tokens, usage.cloud_completion_tokens) == (len(" gray"), 8)
    assert usage.cloud_share == pytest.approx(5 / (usage.edge_tokens + 5))
    (consult,) = [event for event in seen if isinstance(event, Consult)]
    assert (consult.requested, consult.answered) == (1, 5)


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
        with decoder.stream(IDS, max_tokens=60, budget=budget, sampling=sampling) as events:
            seen = list(events)
            budget = events.budget
        usage = collect(iter(seen)).usage
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
            cloud = late(model, patience)
            decoder = Decoder(
                small, router=Random(7), policy=policy, cloud=cloud, breaker=NeverOpen()
            )
            with decoder.stream(prompt, max_tokens=48, pending=True) as events:
                seen = list(events)
            assert any(isinstance(event, Pending) for event in seen) == bool(speculate)
            return collect(iter(seen))

        waiting, ahead = run(0, [0]), run(8, [0, 5, 3, 9])
    assert [(t.id, t.source, t.reason) for t in ahead.tokens] == [
        (t.id, t.source, t.reason) for t in waiting.tokens
    ]
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
