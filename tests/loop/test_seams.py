"""Consults of a cloud with another vocabulary: between words, for words, whatever the link does."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel, CloudSession, WrappedCloud, WrappedSession
from edgewise.cloud.bridge.adapter import Bridge, bridged
from edgewise.cloud.local import LocalCloud
from edgewise.completion import Completion, Sent
from edgewise.edge.llamacpp import LlamaModel
from edgewise.events import Consult, Pending, Token
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.policy import Budget, Policy
from edgewise.prompts import Message, Prompt, prompt_of
from edgewise.routers.constant import Constant, Random
from edgewise.routers.uncertainty import MaxProb
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import (
    EOS,
    ByteTokenizer,
    Script,
    ScriptedEdge,
    noise,
    replying,
)
from tests.loop.test_speculate import _Late, _Patient, told

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())
EDGE, OWN = ByteTokenizer(), ByteTokenizer("<other>")
BEGIN = [ord(c) for c in "abc   ,"] + ["é".encode()[0], "日".encode()[0]]
GO_ON = {"é".encode()[0]: "é".encode()[1]} | dict(
    zip("日".encode(), "日".encode()[1:], strict=False)
)


class Behind(WrappedCloud):
    """Another cloud model, behind a link on which an answer shows after so many looks."""

    def __init__(self, cloud: CloudModel, patience: Sequence[int]) -> None:
        super().__init__(cloud)
        self.patience, self.flown = patience, 0

    def open(self, prompt: Prompt) -> "_Behind":
        return _Behind(self, self.cloud.open(prompt))


class _Behind(WrappedSession):
    def __init__(self, cloud: Behind, session: CloudSession) -> None:
        super().__init__(session)
        self._cloud = cloud

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        asked = super().ask(ids, n, sampling, deadline, sent)
        self._cloud.flown += 1
        return _Late(asked, self._cloud.patience[self._cloud.flown % len(self._cloud.patience)])


def speaking(script: Script, *, endings: int = 0) -> Script:
    """Says in whole characters, mostly, what the script's logits choose."""

    def says(ids: Sequence[int]):
        logits = script(ids).copy()
        kind = hash((len(ids), *ids[-3:]))
        if ids[-1] in GO_ON and kind % 40:
            logits[GO_ON[ids[-1]]] = 50.0
        elif endings and kind % endings == 0:
            logits[EOS] = 50.0
        else:
            logits[BEGIN] += np.float32(20)
        return logits

    return says


def agreeing(script: Script, other: Script, agreement: float) -> Script:
    """The cloud says what the edge does, except at some places."""

    def says(ids: Sequence[int]):
        differs = hash((len(ids), ids[-1])) % 100 >= 100 * agreement
        return other(ids) if differs else script(ids)

    return says


def answered(
    edge: Script, cloud: CloudModel, policy: Policy, seed: int, **more: object
) -> tuple[Answer, Budget]:
    decoder = Decoder(
        ScriptedEdge(edge), router=Random(seed), policy=policy, cloud=cloud, breaker=_Patient()
    )
    with decoder.stream(IDS, **more) as events:  # type: ignore[arg-type]
        return collect(events), events.budget


@given(
    seed=st.integers(0, 500),
    agreement=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    patience=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    speculate=st.integers(1, 12),
    threshold=st.sampled_from([0.2, 0.6, 0.9]),
    share=st.sampled_from([None, None, 0.05, 0.2, 0.5, 1.0]),
    cap=st.sampled_from([None, None, 0, 3, 9]),
    span=st.integers(1, 4),
    temperature=st.sampled_from([0.0, 1.0]),
    stop=st.sampled_from([(), ("a,",), (" b", "zz"), ("é", "日b")]),
    endings=st.sampled_from([0, 15]),
    words=st.booleans(),
)
def test_the_answer_is_that_of_the_waiting_loop(
    seed: int,
    agreement: float,
    patience: list[int],
    speculate: int,
    threshold: float,
    share: float | None,
    cap: int | None,
    span: int,
    temperature: float,
    stop: tuple[str, ...],
    endings: int,
    words: bool,
) -> None:
    edge = speaking(noise(seed), endings=endings)
    script = agreeing(edge, speaking(noise(seed + 1000), endings=endings), agreement)

    def run(ahead: int, patience: Sequence[int]) -> tuple[Answer, Budget]:
        large = ScriptedCloud(script, tokenizer=OWN)
        cloud = Behind(Bridge(large, own=OWN, edge=EDGE, words=words), patience)
        policy = Policy(
            threshold=threshold,
            cloud_share=share,
            max_cloud_tokens=cap,
            span=span,
            deadline=60,
            speculate=ahead,
        )
        sampling = Sampling(temperature=temperature, seed=seed)
        return answered(edge, cloud, policy, seed, max_tokens=40, stop=stop, sampling=sampling)

    waiting, left = run(0, [0])
    ahead, later = run(speculate, patience)
    assert told(ahead) == told(waiting)
    assert ahead.usage.cloud_completion_tokens == waiting.usage.cloud_completion_tokens
    wasted = ahead.usage.wasted_tokens - waiting.usage.wasted_tokens
    assert wasted >= 0
    assert left.credit - later.credit == pytest.approx(wasted if share is not None else 0)
    assert (later.shift, later.charged) == (left.shift, left.charged)
    if cap is not None:
        assert waiting.usage.cloud_tokens + waiting.usage.wasted_tokens <= cap
    if share is not None and share < 1:
        # A word may cost more than there is; later ones wait for it.
        most = 2 + share * len(waiting.tokens) + 40
        assert waiting.usage.cloud_tokens <= most
    if cap is None:
        for run_of in cloud_runs(waiting.tokens)[:-1]:
            bytes(run_of).decode()


def cloud_runs(tokens: Sequence[Token]) -> list[list[int]]:
    """Ids that the cloud wrote in one go."""
    runs: list[list[int]] = []
    for token in tokens:
        if token.reason == "critical":
            runs.append([])
        if token.source == "cloud":
            runs[-1].append(token.id)
    return runs


def told_by(edge: str, cloud: str, *, unsure: tuple[int, ...], **policy: object) -> list[Token]:
    small = ScriptedEdge(replying(edge, prompt=PROMPT, unsure=unsure))
    large = ScriptedCloud(replying(cloud, prompt=PROMPT), tokenizer=OWN)
    rules = Policy(threshold=0.3, deadline=60, **policy)  # type: ignore[arg-type]
    model = Bridge(large, own=OWN, edge=EDGE, words=True)
    decoder = Decoder(small, router=MaxProb(), policy=rules, cloud=model)
    with decoder.stream(IDS) as events:
        return [event for event in events if isinstance(event, Token)]


def text_of(tokens: Sequence[Token]) -> str:
    return "".join(token.text for token in tokens)


@pytest.mark.parametrize("speculate", [0, 8])
def test_a_wish_inside_of_a_word_waits_for_the_next(speculate: int) -> None:
    tokens = told_by("the grey sky", "the grey sea", unsure=(6,), speculate=speculate)
    assert text_of(tokens) == "the grey sea"
    assert [t.index for t in tokens if t.reason == "mid_word"] == [6, 7]
    assert [t.reason for t in tokens[8:12]] == ["critical", "span", "span", "span"]
    assert [t.source for t in tokens[:9]] == ["edge"] * 8 + ["cloud"]


@pytest.mark.parametrize("speculate", [0, 8])
def test_a_span_is_words(speculate: int) -> None:
    for span, expected in ((1, "the gray"), (2, "the gray sea"), (3, "the gray sea,")):
        tokens = told_by(
            "the grey sky.", "the gray sea, so", unsure=(3,), span=span, speculate=speculate
        )
        written = [token for token in tokens if token.source == "cloud"]
        assert "the" + text_of(written) == expected


def test_the_share_counts_the_edges_tokens_and_the_clouds_stand_beside() -> None:
    small = ScriptedEdge(replying("the grey sky", prompt=PROMPT, unsure=(3,)))
    large = ScriptedCloud(replying("the gray sky", prompt=PROMPT), tokenizer=OWN)
    policy = Policy(threshold=0.3, deadline=60)
    model = Bridge(large, own=OWN, edge=EDGE)
    decoder = Decoder(small, router=MaxProb(), policy=policy, cloud=model)
    with decoder.stream(IDS) as events:
        seen = list(events)
    answer = collect(iter(seen))
    assert answer.usage.cloud_tokens == len(" gray")
    assert answer.usage.cloud_completion_tokens == 8
    assert answer.usage.cloud_share == pytest.approx(5 / len(answer.tokens))
    (consult,) = [event for event in seen if isinstance(event, Consult)]
    assert (consult.asked, consult.answered) == (1, 5)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_the_share_holds_over_a_conversation(share: float) -> None:
    """But for the first credit and for the last word, which later answers would pay for."""
    edge = speaking(noise(5), endings=25)
    script = agreeing(edge, speaking(noise(6), endings=25), 0.5)
    budget, longest = Budget(), 0
    written = cloud = 0
    for seed in range(40):
        model = Bridge(ScriptedCloud(script, tokenizer=OWN), own=OWN, edge=EDGE, words=True)
        decoder = Decoder(
            ScriptedEdge(edge),
            router=Random(seed),
            policy=Policy(cloud_share=share, speculate=6),
            cloud=Behind(model, [2, 5]),
        )
        sampling = Sampling(temperature=1.0, seed=seed)
        with decoder.stream(IDS, max_tokens=60, budget=budget, sampling=sampling) as events:
            answer = collect(events)
            budget = events.budget
        written += len(answer.tokens)
        cloud += answer.usage.cloud_tokens + answer.usage.wasted_tokens
        longest = max([longest, *map(len, cloud_runs(answer.tokens))])
        assert cloud <= share * written + 2 + longest
    assert cloud > 0.5 * share * written


def test_a_cap_holds_inside_of_a_word() -> None:
    for cap in range(1, 8):
        tokens = told_by("a grey sky", "a great sea", unsure=(1,), span=2, max_cloud_tokens=cap)
        assert sum(token.source == "cloud" for token in tokens) == cap


@pytest.mark.parametrize("words", [False, True])
def test_a_cloud_that_writes_all_writes_its_own_text(words: bool) -> None:
    text = "It is naïve, 日本語 and so on: 42 times."
    large = ScriptedCloud(replying(text, prompt=PROMPT), tokenizer=OWN)
    policy = Policy().cloud_alone()
    small = ScriptedEdge(speaking(noise(3)))
    model = Bridge(large, own=OWN, edge=EDGE, words=words)
    answer = Decoder(small, router=Constant(1.0), policy=policy, cloud=model).generate(IDS)
    assert answer.text == text
    assert {token.source for token in answer.tokens} == {"cloud"}
    assert answer.finish_reason == "stop"


@given(seed=st.integers(0, 99), at=st.integers(0, 30), speculate=st.sampled_from([0, 6]))
def test_going_back_gives_the_same_answer_again(seed: int, at: int, speculate: int) -> None:
    edge = speaking(noise(seed))
    script = agreeing(edge, speaking(noise(seed + 1)), 0.7)
    model = Bridge(ScriptedCloud(script, tokenizer=OWN), own=OWN, edge=EDGE, words=True)
    cloud = Behind(model, [3, 0, 7])
    policy = Policy(threshold=0.7, span=2, deadline=60, speculate=speculate)
    decoder = Decoder(ScriptedEdge(edge), router=Random(seed), policy=policy, cloud=cloud)

    def tokens(events: Iterator[object]) -> list[tuple[object, ...]]:
        seen = [event for event in events if isinstance(event, Token)]
        return [(t.index, t.id, t.text, t.source, t.reason) for t in seen]

    whole = tokens(decoder.stream(IDS, max_tokens=40))
    with decoder.stream(IDS, max_tokens=40) as events:
        while events.index < at:
            next(events)
        events.rewind(at)
        assert tokens(events) == whole[at:]


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_real_models_of_two_vocabularies(bpe_path: Path, turned: bool, words: bool) -> None:
    """The pocket edge before a cloud of random weights, and such an edge before the pocket's."""
    paths = (bpe_path, bundled("cloud")) if turned else (bundled("edge"), bpe_path)
    with (
        LlamaModel(paths[0], threads=1) as small,
        closing(LocalCloud(LlamaModel(paths[1], threads=1))) as large,
    ):
        model = Bridge(large, own=large.model.tokenizer, edge=small.tokenizer, words=words)
        assert isinstance(bridged(large, small.tokenizer), Bridge)
        prompt = prompt_of(small.tokenizer, [Message("user", "Tell me about the heron.")])
        answers: list[Answer] = []
        for ahead, patience in ((0, [0]), (8, [0, 5, 3, 9])):
            policy = Policy(threshold=0.8, deadline=60, speculate=ahead)
            cloud = Behind(model, patience)
            decoder = Decoder(
                small, router=Random(7), policy=policy, cloud=cloud, breaker=_Patient()
            )
            with decoder.stream(prompt, max_tokens=48, pending=True) as events:
                seen = list(events)
            assert any(isinstance(event, Pending) for event in seen) == bool(ahead)
            answers.append(collect(iter(seen)))
    waiting, ahead_of = answers
    assert [(t.id, t.source, t.reason) for t in ahead_of.tokens] == [
        (t.id, t.source, t.reason) for t in waiting.tokens
    ]
    assert waiting.usage.cloud_calls
    assert bool(waiting.usage.cloud_tokens) == bool(waiting.usage.cloud_completion_tokens)
    # Random weights seldom come to a whole word.
    assert waiting.usage.cloud_tokens or not turned


def test_where_the_cloud_writes_no_word_the_edge_goes_on() -> None:
    """Nothing failed: the answer does not end where failures end it, nor are consults paused."""
    always = np.eye(OWN.size, dtype=np.float32)[ord("x")]
    cloud = Bridge(ScriptedCloud(lambda ids: always, tokenizer=OWN), own=OWN, edge=EDGE)
    decoder = Decoder(
        ScriptedEdge(speaking(noise(5))),
        router=Constant(1.0),
        policy=Policy(threshold=0.5, on_cloud_error="raise"),
        cloud=cloud,
    )
    answer = decoder.generate(IDS, max_tokens=40)
    assert len(answer.tokens) == 40
    assert {token.reason for token in answer.tokens} <= {"rejected", "mid_word"}
    assert sum(token.reason == "rejected" for token in answer.tokens) > 4
