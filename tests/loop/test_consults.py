"""What is opened, sent, cancelled and given back around an answer's consults."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.cloud.connect import connect
from edgewise.cloud.local import LocalCloud
from edgewise.cloud.record import SentAnswer, SentRecord
from edgewise.completion import Completion
from edgewise.edge.base import Floats
from edgewise.errors import CloudUnavailable, UsageError
from edgewise.events import Consult, Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.health import FAILURES, FIRST_PAUSE, Breaker
from edgewise.loop.policy import Budget, Policy
from edgewise.prompts import Message, Prompt
from edgewise.routers.thresholds import own_scores
from edgewise.routers.untrained import Constant, MaxProb
from edgewise.sampling import Sampling
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise, replying
from edgewise.testing.scripted_cloud import ID_BYTES
from edgewise.testing.scripted_edge import SIZE
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud
from tests.doubles.scripted_engine import Edited
from tests.doubles.scripted_text import ScriptedText, TextMisdeed
from tests.doubles.wrapped_cloud import HeldCloud
from tests.gateway.processes import until

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())
ASKING = Policy(threshold=0.3)


def cloud_saying(text: str, **options: Any) -> ScriptedCloud:
    return ScriptedCloud(replying(text, prompt=PROMPT), **options)


def asking(
    cloud: CloudModel | None,
    policy: Policy = ASKING,
    *,
    text: str = "blue",
    unsure: Sequence[int] = (),
    **more: Any,
) -> Decoder:
    """Asks for every token, unless the edge is `unsure` at some alone."""
    return Decoder(
        ScriptedEdge(replying(text, prompt=PROMPT, unsure=unsure)),
        router=MaxProb() if unsure else Constant(1.0),
        policy=policy,
        cloud=cloud,
        **more,
    )


@pytest.mark.parametrize(
    "policy",
    [
        Policy(cloud_share=0.0),
        Policy(cloud_share=0.3).edge_alone(),
        Policy(threshold=0.0, max_cloud_tokens=0),
        Policy(cloud_share=0.5, max_cloud_tokens=0),
    ],
)
def test_nothing_is_opened_that_the_policy_can_never_use(policy: Policy) -> None:
    cloud = ScriptedCloud(noise())
    assert asking(cloud, policy).generate(IDS).text == "blue"
    assert (cloud.opened, cloud.prefetched, cloud.asks) == (0, [], [])


def test_nothing_is_prefetched_once_the_cap_is_spent() -> None:
    cloud = cloud_saying("blue sky today")
    asking(cloud, Policy(max_cloud_tokens=2), text="blue sky today").generate(IDS)
    assert len(cloud.asks) == 2
    assert [len(ids) - len(IDS) for ids in cloud.prefetched] == [0, 1]


def test_the_prompt_and_every_token_are_prefetched_and_never_a_draft() -> None:
    cloud = cloud_saying("gray sky", delay=0.05)
    decoder = asking(cloud, Policy(threshold=0.3, speculate=8), text="grey sky", unsure=(2,))
    assert decoder.generate(IDS).text == "gray sky"
    whole = tuple(IDS) + tuple(b"gray sky")
    assert cloud.prefetched[0] == tuple(IDS)
    assert all(ids == whole[: len(ids)] for ids in cloud.prefetched)


def test_where_nothing_is_prefetched_no_token_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor recorded: most tokens would cost that."""
    cloud = cloud_saying("blue sky")
    monkeypatch.setattr(ScriptedCloud, "prefetches", False)
    monkeypatch.setattr(SentAnswer, "prefetch", None)
    assert asking(cloud, text="blue sky").generate(IDS).text == "blue sky"
    assert cloud.prefetched == []


def test_a_session_gets_the_messages_where_there_are_some() -> None:
    prompts: list[Prompt] = []

    class Opened(ScriptedCloud):
        def open(self, prompt: Prompt) -> Any:
            prompts.append(prompt)
            return super().open(prompt)

    decoder = asking(Opened(noise()))
    messages = (Message("user", "sky?"),)
    decoder.generate(Prompt(tuple(IDS), messages), max_tokens=1)
    decoder.generate(IDS, max_tokens=1)
    assert [prompt.messages for prompt in prompts] == [messages, None]
    assert {prompt.ids for prompt in prompts} == {tuple(IDS)}


@pytest.mark.parametrize("stage", ["record", "open", "prefetch"])
def test_an_answer_that_cannot_begin_gives_everything_back(stage: str) -> None:
    def fail(*_: object) -> Any:
        raise RuntimeError("no room")

    class Broken(ScriptedCloud):
        def open(self, prompt: Prompt) -> Any:
            session = fail() if stage == "open" else super().open(prompt)
            if stage == "prefetch":
                session.prefetch = fail
            return session

    record, cloud = SentRecord(), Broken(noise())
    if stage == "record":
        record.answer = fail  # type: ignore[method-assign]
    decoder = asking(cloud, record=record)
    with pytest.raises(RuntimeError):
        decoder.stream(IDS)
    assert decoder.edge.sessions == 0  # type: ignore[attr-defined]
    assert cloud.closed == cloud.opened == (stage == "prefetch")


def test_closing_in_the_middle_cancels_closes_and_charges() -> None:
    cloud = HeldCloud()
    decoder = asking(cloud, Policy(cloud_share=0.5, speculate=4, deadline=30))
    with decoder.stream(IDS, pending=True) as events:
        next(events)
    assert all(future.cancelled() for future in cloud.flying)
    assert (decoder.edge.sessions, cloud.scripted.closed) == (0, 1)  # type: ignore[attr-defined]
    asked = sum(n for _, n in cloud.scripted.asks)
    assert asked >= 1
    assert events.budget.bucket == Budget().bucket - asked


def test_a_session_that_cannot_even_be_asked_is_a_fault_like_any_other() -> None:
    def refuse(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        raise CloudUnavailable("gone.")

    with asking(WrappedCloud(ScriptedCloud(noise()), refuse)).stream(IDS) as events:
        seen = list(events)
    tokens = [event for event in seen if isinstance(event, Token)]
    assert bytes(token.id for token in tokens[:-1]) == b"blue"
    assert [token.reason for token in tokens[:3]] == ["unavailable"] * 3
    consults = [event for event in seen if isinstance(event, Consult)]
    assert [(event.outcome, event.sent_ids) for event in consults] == [("unavailable", 0)] * 3


def test_only_new_ids_travel_and_a_consult_that_failed_reports_them() -> None:
    gone = CloudUnavailable("gone.")
    cloud = cloud_saying("blue", fault=lambda ask: gone if ask == 0 else None)
    with asking(cloud).stream(IDS) as events:
        consults = [event for event in events if isinstance(event, Consult)]
    assert [event.sent_ids for event in consults] == [len(IDS), 1, 1, 1, 1]
    assert all(event.sent_bytes == event.sent_ids * ID_BYTES for event in consults)


@pytest.mark.parametrize(
    ("counts", "total"),
    [((3, None), None), ((3, 0), 3), ((None, 4), None), ((None, None), None), ((), 0)],
)
def test_a_meter_that_is_missing_once_leaves_no_sum(
    counts: tuple[int | None, ...], total: int | None
) -> None:
    """Nothing is known to be nothing only where nothing was asked."""

    def metered(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        count, future = counts[len(ids) - len(IDS)], Flying()
        completion: Completion = send().result()
        future.set_result(replace(completion, cached=count, computed=count))
        return future

    policy = Policy() if counts else Policy(cloud_share=0.0)
    decoder = asking(WrappedCloud(cloud_saying("blue"), metered), policy)
    usage = decoder.generate(IDS, max_tokens=2).usage
    assert (usage.cloud_prompt_cached, usage.cloud_prompt_computed) == (total, total)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -0.001, 1.001, np.float32(2), "0.4", None, [0.5], np.zeros(1)],
)
def test_a_score_that_is_not_one_names_the_router(value: Any) -> None:
    class Odd:
        needs, top = Constant(0).needs, 0

        def score(self, step: object) -> float:
            return value  # type: ignore[no-any-return]

    edge = ScriptedEdge(noise())
    with pytest.raises(UsageError, match="'Odd'"):
        Decoder(edge, router=Odd(), policy=Policy()).generate(IDS)
    with pytest.raises(UsageError, match="'Odd'"):
        own_scores(edge, Odd())
    assert edge.sessions == 0


def test_a_score_of_numpy_is_a_number_in_the_events() -> None:
    class Scored:
        needs, top = Constant(0).needs, 0

        def score(self, step: object) -> float:
            return np.float64(0.25)

    decoder = Decoder(ScriptedEdge(noise()), router=Scored(), policy=Policy())
    assert b'"score":0.25' in msgspec.json.encode(decoder.generate(IDS, max_tokens=2).tokens)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt()])
def test_a_probe_that_cannot_be_sent_makes_way_for_the_next(error: BaseException) -> None:
    now, raised = [0.0], [error]

    def raising(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        if raised:
            raise raised[0]
        return send()

    breaker = Breaker(clock=lambda: now[0])
    decoder = asking(WrappedCloud(cloud_saying("blue"), raising), breaker=breaker)
    for _ in range(3):
        breaker.failed()
    now[0] = 10.0
    with pytest.raises(type(error)):
        decoder.generate(IDS)
    now[0], raised[:] = 100.0, []
    decoder.generate(IDS)
    assert not breaker.is_open


@pytest.mark.parametrize(("cap", "span"), [(1, 1), (8, 8), (5, 2)])
def test_a_probe_counts_against_the_cap(cap: int, span: int) -> None:
    breaker, cloud = Breaker(), HeldCloud(replying("blue sky " * 4, prompt=PROMPT))
    breaker.failed(silent=True)
    policy = Policy(threshold=0.3, max_cloud_tokens=cap, span=span, deadline=60)
    with asking(cloud, policy, text="blue " * 8, breaker=breaker).stream(IDS) as events:
        for event in events:
            if isinstance(event, Token) and event.index == 1:
                cloud.released.set()
                cloud.flying[0].set_result(Completion(ids=(98,), logprobs=(None,), stopped=False))
    assert not breaker.is_open
    assert 0 < sum(n for _, n in cloud.scripted.asks) <= cap


def test_an_answer_that_ends_before_its_probe_says_nothing_of_the_link() -> None:
    now, free, script = [0.0], threading.Event(), replying("blue", prompt=PROMPT)

    def held(ids: Sequence[int]) -> Floats:
        free.wait(60)
        return script(ids)

    breaker = Breaker(clock=lambda: now[0])
    for _ in range(FAILURES):
        breaker.failed()
    now[0] = FIRST_PAUSE
    cloud = LocalCloud(ScriptedEdge(held))
    policy = Policy(threshold=0.3, deadline=60.0, span=2)
    answer = asking(cloud, policy, breaker=breaker).generate(IDS, max_tokens=2)
    assert {token.reason for token in answer.tokens} == {"circuit_open"}
    free.set()
    cloud.close()
    assert breaker.allow() == "probe"


def test_only_the_probe_makes_way_for_the_next_one() -> None:
    breaker = Breaker(clock=lambda: 0.0)
    cloud = WrappedCloud(cloud_saying("blue"), lambda ids, n, send: interrupted(breaker))
    with pytest.raises(KeyboardInterrupt):
        asking(cloud, breaker=breaker).generate(IDS)
    # Another answer's probe flies since then.
    assert not breaker.allow()


def test_a_link_that_is_made_in_vain_until_the_deadline_is_silent_once() -> None:
    """As one that says nothing at all is."""
    gone = cloud_saying("blue", fault=lambda _: CloudUnavailable("refused"), delay=0.2)
    answer = asking(gone, Policy(threshold=0.0, deadline=0.3), text="blue " * 8).generate(IDS)
    assert [token.reason for token in answer.tokens].count("unavailable") == 1


@contextmanager
def counting(fault: TextMisdeed | None = None) -> Generator[tuple[Decoder, ScriptedText]]:
    """A cloud that takes text is asked for each word; after its probes it does so with `fault`."""
    served = ScriptedText("deepseek")
    small = ScriptedEdge(replying("one two three four five", prompt=PROMPT))
    cloud = connect(served.url, small.tokenizer, engine="deepseek")
    served.fault = lambda number: fault
    breaker = Breaker(clock=lambda: 0.0)
    try:
        yield (
            Decoder(small, router=Constant(1.0), policy=ASKING, cloud=cloud, breaker=breaker),
            served,
        )
    finally:
        cloud.close()
        served.close()


SAID = Prompt(tuple(IDS), (Message("user", "Count in words."),))
LONG = Edited(lambda _: b"This model's context is 8192 tokens.", status=400)


OWN = pytest.mark.parametrize(
    ("fault", "sampling"), [(LONG, Sampling()), (None, Sampling(temperature=0.5, top_k=4))]
)


@OWN
def test_what_a_cloud_of_text_declines_to_one_user_pauses_it_for_no_other(
    fault: TextMisdeed | None, sampling: Sampling
) -> None:
    """Seen: after three such answers the cloud was asked for nobody's."""
    with counting(fault) as (decoder, served):
        for _ in range(FAILURES):
            assert decoder.generate(SAID, sampling=sampling).usage.failed_calls
        assert not decoder.tiers[0].breaker.is_open
        served.fault = lambda number: None
        assert decoder.generate(SAID).usage.cloud_tokens


@OWN
def test_what_a_cloud_of_text_declines_is_asked_once_in_an_answer(
    fault: TextMisdeed | None, sampling: Sampling
) -> None:
    """Seen: each further word waited for a refusal, in each answer, where it declined everybody."""
    with counting(fault) as (decoder, _):
        for _ in range(FAILURES):
            answer = decoder.generate(SAID, sampling=sampling)
            assert answer.text == "one two three four five"
            assert (answer.usage.cloud_calls, answer.usage.failed_calls) == (1, 1)
            assert answer.tokens[0].reason == "rejected"
            assert {one.reason for one in answer.tokens[1:]} == {"circuit_open", "mid_word"}


@OWN
def test_a_probe_that_is_declined_for_what_one_user_asked_makes_way_for_the_next(
    fault: TextMisdeed | None, sampling: Sampling
) -> None:
    with counting(fault) as (decoder, _):
        breaker = decoder.tiers[0].breaker
        breaker.failed(silent=True)
        decoder.generate(SAID, sampling=sampling)
        until(lambda: breaker.allow() == "probe")


@pytest.mark.parametrize(
    ("status", "said"), [(402, b""), (404, b""), (400, b"The model does not exist")]
)
def test_a_cloud_of_text_that_declines_everybody_is_paused(status: int, said: bytes) -> None:
    with counting(Edited(lambda _: said, status=status)) as (decoder, _):
        for _ in range(FAILURES):
            decoder.generate(SAID)
        assert decoder.tiers[0].breaker.is_open


def interrupted(breaker: Breaker) -> Flying:
    breaker.failed(silent=True)
    assert breaker.allow() == "probe"
    raise KeyboardInterrupt


def test_nothing_is_prefetched_to_a_cloud_that_is_gone() -> None:
    cloud = cloud_saying("blue", fault=lambda _: CloudUnavailable("gone"))
    with asking(cloud, text="blue " * 8).stream(IDS, max_tokens=30) as events:
        reasons, sent = [], []
        for event in events:
            if isinstance(event, Token):
                reasons.append(event.reason)
                sent.append(len(cloud.prefetched))
    assert "circuit_open" in reasons
    assert sent[-1] == sent[reasons.index("circuit_open")]


def test_corrections_are_counted_against_what_would_have_been_written() -> None:
    """Two tokens are as likely; at temperature 1 the draw decides which is the edge's."""
    logits = np.full(SIZE, -1e9, np.float32)
    logits[[65, 66]] = 0.0, 0.1
    edge, sampling = ScriptedEdge(lambda ids: logits), Sampling(temperature=1.0, seed=5)
    drawn = Decoder(edge, router=Constant(0.0), policy=Policy()).generate(
        IDS, max_tokens=40, sampling=sampling
    )
    truth = sum(token.id != 65 for token in drawn.tokens)
    assert 5 < truth < 35
    always = np.where(np.arange(SIZE) == 65, 9.0, 0.0).astype(np.float32)
    decoder = Decoder(
        edge, router=Constant(1.0), policy=Policy(), cloud=ScriptedCloud(lambda ids: always)
    )
    answer = decoder.generate(IDS, max_tokens=40, sampling=sampling)
    assert (answer.usage.cloud_tokens, answer.usage.correction_tokens) == (40, truth)
    assert [token.draft for token in answer.tokens] == [token.id for token in drawn.tokens]
