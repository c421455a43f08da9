"""Latency, the deadlines that follow it, and the circuit breaker with a clock of its own."""

from contextlib import closing

import pytest
from msgspec.structs import replace

from edgewise.cloud.engine import LlamaServer
from edgewise.loop import policy
from edgewise.loop.decoder import Decoder
from edgewise.loop.health import (
    ENOUGH,
    FAILURES,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    RECENT,
    Breaker,
    Latency,
)
from edgewise.loop.policy import LONGEST_DEADLINE, LONGEST_READING, SHORTEST_DEADLINE, Policy
from edgewise.routers.untrained import Constant
from edgewise.testing import ByteTokenizer, ScriptedEdge, noise
from tests.doubles.scripted_engine import ScriptedEngine, Twisted


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere no test waits so shortly."""
    monkeypatch.setattr(policy, "SHORTEST_DEADLINE", SHORTEST_DEADLINE)


def known(seconds: float, times: int) -> Latency:
    latency = Latency()
    for _ in range(times):
        latency.answered(seconds, first=False)
    return latency


def test_the_deadline_is_a_bounded_multiple_of_the_median() -> None:
    def deadline(seconds: float, times: int = ENOUGH, *, first: bool = False) -> float:
        return Policy().deadline_now(known(seconds, times), first=first)

    assert deadline(0.01, ENOUGH - 1) == LONGEST_DEADLINE
    assert deadline(0.01) == SHORTEST_DEADLINE
    assert deadline(0.3) == pytest.approx(4 * 0.3)
    assert deadline(3.0) == LONGEST_DEADLINE
    # An answer's first consults are judged apart.
    assert deadline(0.05, RECENT, first=True) == LONGEST_DEADLINE
    latency = known(0.05, RECENT)
    for _ in range(ENOUGH):
        latency.answered(1.0, first=True)
    assert Policy().deadline_now(latency, first=True) == pytest.approx(4.0)
    assert Policy().deadline_now(latency, first=False) == SHORTEST_DEADLINE


def test_the_deadline_finds_a_link_that_became_slow() -> None:
    """Consults take 1.5 s from now on: backing off, every further one is in time at last."""
    latency, policy = known(0.02, RECENT), Policy()
    in_time = []
    for _ in range(40):
        deadline = policy.deadline_now(latency, first=False)
        in_time.append(deadline >= 1.5)
        if in_time[-1]:
            latency.answered(1.5, first=False)
        else:
            latency.timed_out(deadline, first=False)
    assert any(in_time[:4])
    assert all(in_time[-10:])


def test_an_answers_first_consult_may_take_as_long_as_its_prompt_takes_to_read() -> None:
    latency, policy = known(0.3, RECENT), Policy()

    def deadline(prompt: int) -> float:
        return policy.deadline_now(latency, first=True, prompt=prompt)

    assert deadline(1000) == pytest.approx(20.0), "a guess, before anything was measured"
    latency.prefill_took(0.4, 4)
    assert deadline(1000) == pytest.approx(20.0), "what was cached says nothing"
    latency.prefill_took(10.0, 200)
    assert deadline(1000) == LONGEST_READING
    for _ in range(100):
        latency.prefill_took(0.5, 500)
    assert deadline(1000) == LONGEST_DEADLINE
    assert deadline(10_000) == pytest.approx(20.0, rel=0.01)
    latency.timed_out(20.0, first=True)
    assert deadline(10_000) == pytest.approx(40.0, rel=0.01)
    assert policy.deadline_now(latency, first=False, prompt=10_000) <= LONGEST_DEADLINE
    assert Policy(deadline=2.5).deadline_now(latency, first=True, prompt=10_000) == 2.5


def test_where_a_failure_ends_the_answer_no_consult_is_given_up_early() -> None:
    """A hiccup of a quick link would end an evaluation of hours."""
    policy, latency = Policy(on_cloud_error="raise"), known(0.01, RECENT)
    assert policy.deadline_now(latency, first=False) == LONGEST_DEADLINE
    assert policy.deadline_now(latency, first=False, prompt=1000) == pytest.approx(20.0)
    latency.timed_out(1.0, first=False)
    assert policy.deadline_now(latency, first=False, prompt=10**6) == LONGEST_READING


def test_the_first_consult_teaches_how_fast_a_prompt_is_read() -> None:
    with (
        closing(ScriptedEngine(dialect="llama-server", seconds=0.05)) as engine,
        closing(LlamaServer(engine.url)) as cloud,
    ):
        cloud.check_vocabulary(ByteTokenizer())
        measured = Twisted(lambda writing: replace(writing, cached=0, computed=100))
        engine.fault = lambda number: measured
        decoder = Decoder(ScriptedEdge(noise()), router=Constant(1.0), policy=Policy(), cloud=cloud)
        decoder.generate(list(b"sky? " * 20), max_tokens=3)
    reading = decoder.tiers[0].latency.prefill
    assert reading is not None
    assert reading >= 0.05 / 100


def test_a_completion_that_is_about_to_come_is_waited_for() -> None:
    """A step of 40 ms, half of the completions change the token: 20 ms are worth waiting."""
    latency = known(0.1, RECENT)
    assert latency.patience(0.09, first=False) == 0  # the step is not known yet
    latency.step_took(0.04)
    for elapsed, wait in ((0.05, 0), (0.09, 0.03), (0.11, 0.01), (0.13, 0)):
        assert latency.patience(elapsed, first=False) == pytest.approx(wait)
    for _ in range(100):
        latency.draft_judged(changed=False)
    # A draft that is always right never waits.
    assert latency.patience(0.09, first=False) == pytest.approx(0, abs=1e-3)


def broken(now: list[float]) -> Breaker:
    breaker = Breaker(clock=lambda: now[0])
    for _ in range(FAILURES):
        assert breaker.allow()
        breaker.failed()
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(clock=lambda: 0.0)
    for _ in range(10):
        breaker.failed()
        breaker.succeeded()
    assert not breaker.is_open
    assert broken([0.0]).is_open


def test_one_probe_goes_when_the_pause_is_over_and_pauses_double_up_to_a_bound() -> None:
    now, pause = [0.0], FIRST_PAUSE
    breaker = broken(now)
    for _ in range(8):
        now[0] += pause - 0.001
        assert not breaker.allow()
        now[0] += 0.001
        assert [breaker.allow() for _ in range(3)] == ["probe", "", ""]
        breaker.failed(probe=True)
        pause = min(2 * pause, LONGEST_PAUSE)
    assert pause == LONGEST_PAUSE
    now[0] += pause
    assert breaker.allow()
    breaker.succeeded()
    assert breaker.allow()
    assert not breaker.is_open


def test_other_answers_failures_leave_a_probe_and_its_pause_alone() -> None:
    """They were sent before it: on a dead link the first pause is 1 s, however many answers."""
    now = [0.0]
    breaker = Breaker(clock=lambda: now[0])
    breaker.failed(silent=True)
    assert breaker.allow() == "probe"
    for _ in range(4):
        breaker.failed(silent=True)
    now[0] = LONGEST_PAUSE
    assert not breaker.allow()  # the probe still flies
    breaker.failed(probe=True)
    now[0] += 2 * FIRST_PAUSE
    assert breaker.allow() == "probe"
