"""The circuit breaker, with a clock of its own."""

from edgewise.loop.health import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, Breaker


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


def test_one_probe_goes_when_the_pause_is_over() -> None:
    now = [0.0]
    breaker = broken(now)
    assert not breaker.allow()
    now[0] = FIRST_PAUSE
    assert [breaker.allow() for _ in range(3)] == [True, False, False]
    breaker.succeeded()
    assert breaker.allow()
    assert not breaker.is_open


def test_a_probe_that_was_not_made_leaves_room_for_one() -> None:
    now = [0.0]
    breaker = broken(now)
    now[0] = FIRST_PAUSE
    assert breaker.allow()
    breaker.forgone()
    assert [breaker.allow() for _ in range(2)] == [True, False]


def test_pauses_double_up_to_a_bound() -> None:
    now = [0.0]
    breaker = broken(now)
    pause = FIRST_PAUSE
    for _ in range(8):
        now[0] += pause - 0.001
        assert not breaker.allow()
        now[0] += 0.001
        assert breaker.allow()
        breaker.failed()
        pause = min(2 * pause, LONGEST_PAUSE)
    assert pause == LONGEST_PAUSE
