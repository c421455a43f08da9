"""Speculating changes how long an answer takes, never the answer."""

from collections.abc import Sequence
from concurrent.futures import Future

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edgewise.completion import Completion, Sent
from edgewise.edge.base import EdgeAbilities, Rewinds
from edgewise.errors import CloudTimeout, CloudUnavailable
from edgewise.events import Pending, RolledBack, Token
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.health import Breaker
from edgewise.loop.policy import Budget, Policy
from edgewise.prompts import Prompt
from edgewise.routers.constant import Random
from edgewise.routers.uncertainty import MaxProb
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud, ScriptedCloudSession
from edgewise.testing.scripted_edge import EOS, SIZE, ScriptedEdge, noise, replying

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())


class Slow(ScriptedCloud):
    """Answers a consult only after it was looked at `patience[number]` times."""

    def __init__(self, script: object, patience: Sequence[int], **options: object) -> None:
        super().__init__(script, **options)  # type: ignore[arg-type]
        self.patience = patience
        self.futures: list[_Late] = []

    def open(self, prompt: Prompt) -> "_SlowSession":
        return _SlowSession(self)


class _SlowSession(ScriptedCloudSession):
    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        cloud = self._cloud
        assert isinstance(cloud, Slow)
        asked = super().ask(ids, n, sampling, deadline, sent)
        late = _Late(asked, cloud.patience[len(cloud.futures) % len(cloud.patience)])
        cloud.futures.append(late)
        return late


class _Late(Future[Completion]):
    """Not done until it was asked often enough; waiting for it is always answered."""

    def __init__(self, real: "Future[Completion]", patience: int) -> None:
        super().__init__()
        self._real, self._patience = real, patience

    def done(self) -> bool:
        self._patience -= 1
        return self._patience < 0

    def result(self, timeout: float | None = None) -> Completion:
        return self._real.result(timeout)


def told(answer: Answer) -> list[object]:
    """What must not depend on speculation."""
    return [
        answer.text,
        answer.finish_reason,
        [
            (t.index, t.id, t.text, t.source, t.score, t.logprob, t.reason, t.edge, t.cloud)
            for t in answer.tokens
        ],
        answer.usage.edge_tokens,
        answer.usage.cloud_tokens,
        answer.usage.correction_tokens,
    ]


def forgetful(seed: int):
    """Knows its position alone: what it would write behind another token is the same."""
    script = noise(seed)
    return lambda ids: script([len(ids)])


def agreeing(seed: int, agreement: float):
    """The cloud writes what the edge does, except at some positions."""
    own, other = noise(seed) if seed % 2 else forgetful(seed), noise(seed + 1000)

    def script(ids: Sequence[int]):
        differs = hash((seed, len(ids), ids[-1])) % 100 >= 100 * agreement
        return other(ids) if differs else own(ids)

    return script


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
    stop=st.sampled_from([(), ("a",), ("\x00", "zz"), ("e", "qu")]),
    ending=st.booleans(),
    failing=st.sampled_from([0, 0, 2, 3]),
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
    ending: bool,
    failing: int,
) -> None:
    """Whatever the link's timing: share, cap, spans, stops and failures drawn at random."""

    def ends(script):
        def ending_script(ids: Sequence[int]):
            logits = script(ids).copy()
            if ending and hash((seed, tuple(ids[-2:]))) % 12 == 0:
                logits[EOS] = 60.0
            assert len(logits) == SIZE
            return logits

        return ending_script

    def run(ahead: int, cloud: ScriptedCloud) -> tuple[Answer, Budget]:
        policy = Policy(
            threshold=threshold,
            cloud_share=share,
            max_cloud_tokens=cap,
            span=span,
            deadline=60,
            speculate=ahead,
        )
        decoder = Decoder(
            ScriptedEdge(ends(noise(seed) if seed % 2 else forgetful(seed))),
            router=Random(seed),
            policy=policy,
            cloud=cloud,
            breaker=_Patient(),
        )
        sampling = Sampling(temperature=temperature, seed=seed)
        with decoder.stream(IDS, max_tokens=24, stop=stop, sampling=sampling) as events:
            answer = collect(events)
            assert failing or cap is None or sum(n for _, n in cloud.asks) <= cap
            return answer, events.budget

    script = ends(agreeing(seed, agreement))
    if failing:
        # By what is asked, not by how often: both loops fail at the same places.
        script_of_fault = {"n": failing}

        class Failing(Slow):
            def open(self, prompt: Prompt) -> "_SlowSession":
                return _FailingSession(self, script_of_fault["n"])

        waiting, left = run(0, Failing(script, [0]))
        ahead, later = run(speculate, Failing(script, patience))
    else:
        waiting, left = run(0, ScriptedCloud(script))
        ahead, later = run(speculate, Slow(script, patience))
    assert told(ahead) == told(waiting)
    assert ahead.usage.cloud_calls >= waiting.usage.cloud_calls
    # What was wasted on the way is paid for by the next answer.
    wasted = ahead.usage.wasted_tokens - waiting.usage.wasted_tokens
    assert wasted >= 0
    assert left.credit - later.credit == pytest.approx(wasted if share is not None else 0)
    assert (later.shift, later.charged) == (left.shift, left.charged)


class _Patient(Breaker):
    """Never opens: consults that fly already cannot know that an earlier one will fail."""

    def failed(self, *, silent: bool = False) -> None:
        pass


class _FailingSession(_SlowSession):
    def __init__(self, cloud: Slow, every: int) -> None:
        super().__init__(cloud)
        self._every = every

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        late = super().ask(ids, n, sampling, deadline, sent)
        if len(ids) % self._every == 0:
            failed: Future[Completion] = Future()
            failed.set_exception(CloudUnavailable("gone."))
            assert isinstance(late, _Late)
            late._real = failed
        return late


def pair(
    edge: str, cloud: str, patience: Sequence[int], *, unsure: tuple[int, ...] = (), ahead: int = 8
) -> tuple[Decoder, Slow]:
    large = Slow(replying(cloud, prompt=PROMPT), patience)
    small = ScriptedEdge(replying(edge, prompt=PROMPT, unsure=unsure))
    policy = Policy(threshold=0.3, speculate=ahead, deadline=60)
    return Decoder(small, router=MaxProb(), policy=policy, cloud=large), large


def test_a_confirmed_guess_waits_for_nothing() -> None:
    decoder, _ = pair("blue sky", "blue sky", [5], unsure=(2,))
    with decoder.stream(IDS, pending=True) as events:
        seen = list(events)
    guesses = [event.index for event in seen if isinstance(event, Pending)]
    assert guesses == [3, 4, 5, 6, 7]
    assert not any(isinstance(event, RolledBack) for event in seen)
    assert [e.id for e in seen if isinstance(e, Token)] == [*b"blue sky", EOS]


def test_another_completion_rewinds_what_was_guessed() -> None:
    decoder, large = pair("grey sky", "gray sky", [4], unsure=(2, 4))
    with decoder.stream(IDS, pending=True) as events:
        seen = list(events)
    assert [e.id for e in seen if isinstance(e, Token)] == [*b"gray sky", EOS]
    (rolled_back,) = [event for event in seen if isinstance(event, RolledBack)]
    assert (rolled_back.index, rolled_back.consults) == (2, 1)
    assert rolled_back.tokens >= 2
    finished = seen[-1]
    assert finished.usage.wasted_tokens == 1  # type: ignore[union-attr]
    assert finished.usage.cloud_tokens == 2  # type: ignore[union-attr]
    assert len(large.asks) == 3


def test_nothing_unconfirmed_is_told_as_a_token() -> None:
    decoder, large = pair("grey sky", "gray sky", [6], unsure=(2,))
    with decoder.stream(IDS, pending=True) as events:
        for event in events:
            if isinstance(event, Token) and event.index >= 2:
                assert any(future._patience < 0 for future in large.futures)
                break


def test_consults_on_the_way_overlap() -> None:
    """Three consults of 50 ms each, sent on the way, take little more than one."""
    text = "blue sky today"
    large = ScriptedCloud(replying(text, prompt=PROMPT), delay=0.1)
    small = ScriptedEdge(replying(text, prompt=PROMPT, unsure=(2, 4, 6)))
    times = {}
    for ahead in (0, 16):
        policy = Policy(threshold=0.3, speculate=ahead)
        decoder = Decoder(small, router=MaxProb(), policy=policy, cloud=large)
        answer = decoder.generate(IDS)
        assert answer.text == text
        times[ahead] = answer.timing.total
    assert times[16] < 0.6 * times[0]


def test_a_dropped_consult_counts_against_the_cap() -> None:
    decoder, large = pair("grey sky", "gray sky", [8], unsure=(2, 3, 4, 5))
    decoder.policy = Policy(threshold=0.3, speculate=8, max_cloud_tokens=3)
    result = decoder.generate(IDS)
    assert sum(n for _, n in large.asks) <= 3
    assert result.usage.cloud_tokens + result.usage.wasted_tokens <= 3


def test_a_deadline_ends_the_wait_and_keeps_the_guesses() -> None:
    text = "blue sky today"
    large = ScriptedCloud(replying("gray", prompt=PROMPT), delay=30.0)
    small = ScriptedEdge(replying(text, prompt=PROMPT, unsure=(2,)))
    policy = Policy(threshold=0.3, speculate=16, deadline=0.2)
    decoder = Decoder(small, router=MaxProb(), policy=policy, cloud=large)
    with decoder.stream(IDS) as events:
        answer = collect(events)
    assert answer.text == text
    assert answer.tokens[2].reason == CloudTimeout.reason
    assert answer.timing.total < 20


@pytest.mark.parametrize("value", [-1])
def test_the_speculate_is_a_number_of_tokens(value: int) -> None:
    with pytest.raises(Exception, match="speculate"):
        Policy(speculate=value)


@pytest.mark.parametrize("rewinds", ["anywhere", "checkpoints", "no"])
def test_an_edge_that_cannot_go_back_does_not_speculate(rewinds: Rewinds) -> None:
    large = Slow(replying("gray sky", prompt=PROMPT), [4])
    script = replying("grey sky", prompt=PROMPT, unsure=(2, 4))
    small = ScriptedEdge(script, abilities=EdgeAbilities(rewinds=rewinds))
    policy = Policy(threshold=0.3, speculate=8, deadline=60)
    decoder = Decoder(small, router=MaxProb(), policy=policy, cloud=large)
    with decoder.stream(IDS, pending=True) as events:
        seen = list(events)
    assert [e.id for e in seen if isinstance(e, Token)] == [*b"gray sky", EOS]
    assert any(isinstance(e, Pending) for e in seen) == (rewinds != "no")
