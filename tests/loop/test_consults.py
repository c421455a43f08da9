"""What is opened, sent, cancelled and given back around an answer's consults."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgewise.cloud.record import SentRecord
from edgewise.completion import Completion, Sent
from edgewise.errors import CloudTimeout, CloudUnavailable, UsageError
from edgewise.events import Consult, Finished, Pending, Token
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.health import Breaker
from edgewise.loop.policy import Budget, Policy
from edgewise.prompts import Message, Prompt
from edgewise.routers.constant import Constant, Random
from edgewise.routers.uncertainty import MaxProb
from edgewise.sampling import Sampling
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise, replying
from edgewise.testing.scripted_cloud import ScriptedCloudSession
from edgewise.testing.scripted_edge import SIZE

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())


class Watched(ScriptedCloud):
    """Knows its sessions: what they were pushed, asked and whether they were closed."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.prompts: list[Prompt] = []
        self.pushed: list[tuple[int, ...]] = []
        self.flying: list[Future[Completion]] = []
        self.closed = 0
        self.silent = False

    def open(self, prompt: Prompt) -> "WatchedSession":
        self.prompts.append(prompt)
        self.opened += 1
        return WatchedSession(self)


class WatchedSession(ScriptedCloudSession):
    def __init__(self, cloud: Watched) -> None:
        super().__init__(cloud)
        self._watched = cloud

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        if self._watched.silent:
            self._watched.asks.append((tuple(ids), n))
            future: Future[Completion] = Future()
        else:
            future = super().ask(ids, n, sampling, deadline, sent)
        self._watched.flying.append(future)
        return future

    def prefetch(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        self._watched.pushed.append(tuple(ids))
        return len(ids)

    def close(self) -> None:
        self._watched.closed += 1


def edge_saying(text: str, *, unsure: tuple[int, ...] = ()) -> ScriptedEdge:
    return ScriptedEdge(replying(text, prompt=PROMPT, unsure=unsure))


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
    cloud = Watched(noise())
    decoder = Decoder(edge_saying("blue"), router=Constant(1.0), policy=policy, cloud=cloud)
    answer = decoder.generate(IDS)
    assert answer.text == "blue"
    assert (cloud.opened, cloud.pushed, cloud.asks) == (0, [], [])


def test_nothing_is_pushed_once_the_cap_is_spent() -> None:
    cloud = Watched(replying("blue sky today", prompt=PROMPT))
    policy = Policy(threshold=0.5, max_cloud_tokens=2)
    decoder = Decoder(
        edge_saying("blue sky today"), router=Constant(1.0), policy=policy, cloud=cloud
    )
    decoder.generate(IDS)
    assert len(cloud.asks) == 2
    assert [len(ids) - len(IDS) for ids in cloud.pushed] == [0, 1]


def test_the_prompt_and_every_token_are_pushed_and_never_a_guess() -> None:
    cloud = Watched(replying("gray sky", prompt=PROMPT), delay=0.05)
    policy = Policy(threshold=0.3, speculate=8)
    decoder = Decoder(
        edge_saying("grey sky", unsure=(2,)), router=MaxProb(), policy=policy, cloud=cloud
    )
    answer = decoder.generate(IDS)
    assert answer.text == "gray sky"
    whole = tuple(IDS) + tuple(b"gray sky")
    assert cloud.pushed[0] == tuple(IDS)
    assert all(ids == whole[: len(ids)] for ids in cloud.pushed)


def test_a_session_gets_the_messages_where_there_are_some() -> None:
    cloud = Watched(replying("blue", prompt=PROMPT))
    decoder = Decoder(edge_saying("blue"), router=Constant(1.0), policy=Policy(), cloud=cloud)
    said = (Message("user", "sky?"),)
    decoder.generate(Prompt(tuple(IDS), said))
    decoder.generate(IDS)
    assert [prompt.messages for prompt in cloud.prompts] == [said, None]
    assert {prompt.ids for prompt in cloud.prompts} == {tuple(IDS)}


@pytest.mark.parametrize("stage", ["open", "push"])
def test_a_cloud_that_fails_at_the_start_gives_the_slot_back(stage: str) -> None:
    class Broken(Watched):
        def open(self, prompt: Prompt) -> WatchedSession:
            if stage == "open":
                raise RuntimeError("no session")
            return BrokenSession(self)

    class BrokenSession(WatchedSession):
        def prefetch(self, ids: Sequence[int], sent: Sent | None = None) -> int:
            raise RuntimeError("no push")

    edge, cloud = edge_saying("blue"), Broken(noise())
    decoder = Decoder(edge, router=Constant(1.0), policy=Policy(), cloud=cloud)
    with pytest.raises(RuntimeError, match="no "):
        decoder.stream(IDS)
    assert edge.sessions == 0
    assert cloud.closed == (stage == "push")


def test_a_rewind_cancels_the_consult_that_is_waited_for() -> None:
    cloud = Watched(noise())
    cloud.silent = True
    policy = Policy(threshold=0.5, speculate=4, deadline=30)
    decoder = Decoder(edge_saying("blue sky"), router=Constant(1.0), policy=policy, cloud=cloud)
    with decoder.stream(IDS, pending=True) as events:
        assert isinstance(next(events), Pending)
        assert not any(future.cancelled() for future in cloud.flying)
        events.rewind(0)
        assert all(future.cancelled() for future in cloud.flying)
        cloud.silent = False
        cloud.script = replying("gray", prompt=PROMPT)
        assert collect(events).text == "gray"
    assert cloud.closed == 1


def test_closing_in_the_middle_cancels_and_closes_everything() -> None:
    edge, cloud = edge_saying("blue sky"), Watched(noise())
    cloud.silent = True
    policy = Policy(threshold=0.5, speculate=4, deadline=30)
    decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)
    with decoder.stream(IDS, pending=True) as events:
        next(events)
    assert all(future.cancelled() for future in cloud.flying)
    assert (edge.sessions, cloud.closed) == (0, 1)


def test_a_session_that_cannot_even_be_asked_is_a_fault_like_any_other() -> None:
    class Refusing(Watched):
        def open(self, prompt: Prompt) -> WatchedSession:
            return RefusingSession(self)

    class RefusingSession(WatchedSession):
        def ask(self, *args: object, **more: object) -> "Future[Completion]":
            raise CloudUnavailable("gone.")

    policy = Policy(threshold=0.5)
    decoder = Decoder(
        edge_saying("blue"), router=Constant(1.0), policy=policy, cloud=Refusing(noise())
    )
    with decoder.stream(IDS) as events:
        seen = list(events)
    tokens = [event for event in seen if isinstance(event, Token)]
    assert bytes(token.id for token in tokens[:-1]) == b"blue"
    assert [token.reason for token in tokens[:3]] == ["unavailable"] * 3
    told = [event for event in seen if isinstance(event, Consult)]
    assert [(event.outcome, event.sent_ids) for event in told] == [("unavailable", 0)] * 3


def test_a_consult_that_failed_says_what_it_sent() -> None:
    cloud = ScriptedCloud(
        replying("blue", prompt=PROMPT),
        fault=lambda ask: CloudUnavailable("gone.") if ask == 0 else None,
    )
    decoder = Decoder(
        edge_saying("blue"), router=Constant(1.0), policy=Policy(threshold=0.5), cloud=cloud
    )
    with decoder.stream(IDS) as events:
        told = [event for event in events if isinstance(event, Consult)]
    assert [event.sent_ids for event in told] == [len(IDS), 1, 1, 1, 1]
    assert all(event.sent_bytes > 0 for event in told)


def test_a_timeout_counts_as_wasted_and_is_charged() -> None:
    cloud = Watched(noise())
    cloud.silent = True
    policy = Policy(cloud_share=0.5, deadline=0.01)
    decoder = Decoder(edge_saying("blue"), router=Constant(1.0), policy=policy, cloud=cloud)
    with decoder.stream(IDS, max_tokens=1) as events:
        answer = collect(events)
        budget = events.budget
    assert answer.tokens[0].reason == CloudTimeout.reason
    assert answer.usage.wasted_tokens == 1
    assert answer.usage.cloud_share == 1.0
    assert budget.credit == pytest.approx(Budget().credit - 1 + 0.5)


@given(
    seed=st.integers(0, 10**6),
    share=st.sampled_from([0.2, 0.5, 0.9]),
    span=st.integers(1, 3),
    speculate=st.sampled_from([0, 8]),
    delay=st.sampled_from([0.0, 0.002]),
    deadline=st.sampled_from([0.001, 30.0]),
    cap=st.sampled_from([None, 3]),
    stop=st.sampled_from([(), ("a", "b", "\x01")]),
)
def test_the_share_that_is_shown_is_the_one_that_is_charged(
    seed: int,
    share: float,
    span: int,
    speculate: int,
    delay: float,
    deadline: float,
    cap: int | None,
    stop: tuple[str, ...],
) -> None:
    """Used, wasted, timed out, probed in vain: what leaves the budget stands in the usage."""
    draws = random.Random(seed)
    faults = [draws.choice([None, CloudTimeout("late"), CloudUnavailable("gone")]) for _ in IDS]
    decoder = Decoder(
        ScriptedEdge(noise(seed)),
        router=Random(seed),
        policy=Policy(
            cloud_share=share,
            span=span,
            speculate=speculate,
            deadline=deadline,
            max_cloud_tokens=cap,
        ),
        cloud=ScriptedCloud(
            noise(seed + 1), delay=delay, fault=lambda ask: faults[ask % len(faults)]
        ),
    )
    with decoder.stream(IDS, max_tokens=12, stop=stop) as events:
        answer = collect(events)
        left = events.budget
    written = len(answer.tokens)
    charged = Budget().credit + share * written - left.credit
    usage = answer.usage
    assert usage.cloud_tokens + usage.wasted_tokens == pytest.approx(charged)
    assert usage.cloud_share == pytest.approx(min(1.0, charged / written))


def test_an_engine_without_a_meter_has_computed_nobody_knows_what() -> None:
    """Nothing is known to be nothing only where nothing was asked."""
    decoder = Decoder(
        edge_saying("blue"), router=Constant(1.0), policy=Policy(), cloud=ScriptedCloud(noise())
    )
    usage = decoder.generate(IDS, max_tokens=2).usage
    assert (usage.cloud_prompt_cached, usage.cloud_prompt_computed) == (None, None)
    decoder.policy = Policy(cloud_share=0.0)
    usage = decoder.generate(IDS, max_tokens=2).usage
    assert (usage.cloud_prompt_cached, usage.cloud_prompt_computed) == (0, 0)


@pytest.mark.parametrize(("told", "sums"), [((3, None), None), ((3, 0), 3), ((None, 4), None)])
def test_a_meter_that_is_missing_once_leaves_no_sum(
    told: tuple[int | None, ...], sums: int | None
) -> None:
    class Metered(ScriptedCloud):
        def open(self, prompt: Prompt) -> "MeteredSession":
            return MeteredSession(self)

    class MeteredSession(ScriptedCloudSession):
        def _write(self, ids: list[int], n: int) -> Completion:
            count = told[len(ids) - len(IDS)]
            return replace(super()._write(ids, n), cached=count, computed=count)

    decoder = Decoder(
        edge_saying("blue"),
        router=Constant(1.0),
        policy=Policy(speculate=0),
        cloud=Metered(replying("blue", prompt=PROMPT)),
    )
    usage = decoder.generate(IDS, max_tokens=2).usage
    assert (usage.cloud_prompt_cached, usage.cloud_prompt_computed) == (sums, sums)


def test_where_the_cloud_writes_everything_no_share_is_above_all() -> None:
    """A guess asks for nothing there, and what a stop string cuts off is shown beside."""
    cloud = Watched(noise(1), delay=0.002)
    for span, stop in ((1, ()), (16, ("a",)), (16, ("\x00", "b"))):
        policy = Policy(cloud_share=1.0, span=span, speculate=16)
        decoder = Decoder(ScriptedEdge(noise(2)), router=Constant(1.0), policy=policy, cloud=cloud)
        usage = decoder.generate(IDS, max_tokens=40, stop=stop).usage
        assert usage.cloud_share <= 1.0
        assert usage.edge_tokens == 0
        assert span > 1 or usage.wasted_tokens == 0


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -0.001, 1.001, np.float32(2), "0.4", None, [0.5], np.zeros(1)],
)
def test_a_score_that_is_none_names_the_router(value: Any) -> None:
    class Odd:
        needs, top = Constant(0).needs, 0

        def score(self, step: object) -> float:
            return value  # type: ignore[no-any-return]

    edge = edge_saying("blue")
    with pytest.raises(UsageError, match="'Odd'"):
        Decoder(edge, router=Odd(), policy=Policy()).generate(IDS)
    assert edge.sessions == 0


def test_a_budget_depends_on_no_link() -> None:
    """The same answers and the same debt, settled later, whatever was dropped on the way."""
    budgets = []
    for delay in (0.0, 0.004):
        budget = Budget()
        texts = []
        for seed in range(12):
            decoder = Decoder(
                ScriptedEdge(noise(seed)),
                router=Random(seed),
                policy=Policy(cloud_share=0.2, deadline=30, speculate=0 if not delay else 8),
                cloud=ScriptedCloud(noise(seed + 50), delay=delay),
            )
            with decoder.stream(IDS, max_tokens=16, budget=budget) as events:
                answer = collect(events)
                wasted = answer.usage.wasted_tokens
                left = events.budget
            budget = Budget(credit=left.credit + wasted, shift=left.shift)
            texts.append([token.id for token in answer.tokens])
        budgets.append((texts, round(budget.credit, 9), round(budget.shift, 9)))
    assert budgets[0] == budgets[1]


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt()])
def test_a_probe_that_cannot_be_sent_makes_way_for_the_next(error: BaseException) -> None:
    class Raising(Watched):
        raised: BaseException | None = None

        def open(self, prompt: Prompt) -> WatchedSession:
            return RaisingSession(self)

    class RaisingSession(WatchedSession):
        def ask(self, *args: Any, **more: Any) -> "Future[Completion]":
            if cloud.raised is not None:
                raise cloud.raised
            return super().ask(*args, **more)

    now = [0.0]
    breaker, cloud = Breaker(clock=lambda: now[0]), Raising(replying("blue", prompt=PROMPT))
    decoder = Decoder(
        edge_saying("blue"), router=Constant(1.0), policy=Policy(), cloud=cloud, breaker=breaker
    )
    for _ in range(3):
        breaker.failed()
    now[0], cloud.raised = 10.0, error
    with pytest.raises(type(error)):
        decoder.generate(IDS)
    now[0], cloud.raised = 100.0, None
    decoder.generate(IDS)
    assert not breaker.is_open


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
    usage = decoder.generate(IDS, max_tokens=40, sampling=sampling).usage
    assert (usage.cloud_tokens, usage.correction_tokens) == (40, truth)


def test_a_record_that_cannot_begin_leaves_no_session_open() -> None:
    class NoRecord(SentRecord):
        def answer(self, *given: Any) -> Any:
            raise RuntimeError("no room")

    class Counted(Watched):
        def open(self, prompt: Prompt) -> WatchedSession:
            self.closed -= 1
            return super().open(prompt)

    edge, cloud = edge_saying("blue"), Counted(noise())
    decoder = Decoder(edge, router=Constant(1.0), policy=Policy(), cloud=cloud, record=NoRecord())
    with pytest.raises(RuntimeError):
        decoder.stream(IDS)
    assert (edge.sessions, cloud.closed) == (0, 0)


def test_one_probe_goes_however_many_answers_ask() -> None:
    now = [0.0]
    breaker = Breaker(clock=lambda: now[0])
    for _ in range(3):
        breaker.failed()
    now[0] = 10.0
    for _ in range(50):
        start = threading.Barrier(16)
        allowed: list[bool] = []

        def ask(start: threading.Barrier = start, allowed: list[bool] = allowed) -> None:
            start.wait()
            allowed.append(breaker.allow())

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(allowed) == 1
        breaker.failed()
        now[0] += 100.0


def test_a_finished_answer_counts_every_consult_once() -> None:
    cloud = Watched(replying("gray sky", prompt=PROMPT), delay=0.03)
    policy = Policy(threshold=0.3, speculate=8)
    decoder = Decoder(
        edge_saying("grey sky", unsure=(2, 4, 5)), router=MaxProb(), policy=policy, cloud=cloud
    )
    with decoder.stream(IDS) as events:
        finished = next(event for event in events if isinstance(event, Finished))
    assert finished.usage.cloud_calls == len(cloud.asks)
    asked = sum(n for _, n in cloud.asks)
    assert finished.usage.cloud_tokens + finished.usage.wasted_tokens == asked


def test_a_consult_that_is_left_behind_is_paid_for() -> None:
    """Whoever leaves in the middle has asked all the same."""
    cloud = Watched(noise())
    cloud.silent = True
    policy = Policy(cloud_share=0.5, speculate=4, deadline=30)
    decoder = Decoder(edge_saying("blue sky"), router=Constant(1.0), policy=policy, cloud=cloud)
    with decoder.stream(IDS, pending=True) as events:
        next(events)
    asked = sum(n for _, n in cloud.asks)
    assert asked >= 1
    assert events.budget.credit == Budget().credit - asked
