"""The thread that connections live in: deadlines, cancelling, an end that leaves nothing."""

import asyncio
import gc
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.io_thread import IoThread
from edgewise.errors import CloudTimeout, CloudUnavailable


async def nothing() -> None:
    pass


async def after(seconds: float, value: int = 7) -> int:
    await asyncio.sleep(seconds)
    return value


def test_a_result_comes_back() -> None:
    thread = IoThread("far")
    assert thread.submit(after(0.0), 30).result(60) == 7
    thread.close(nothing(), nothing())


def test_a_deadline_is_a_sentence_with_the_name() -> None:
    thread = IoThread("http://far")
    with pytest.raises(CloudTimeout, match="http://far"):
        thread.submit(after(200), 0.05).result(60)
    thread.close(nothing(), nothing())


def test_an_error_comes_back_as_it_is() -> None:
    async def failing() -> None:
        raise ZeroDivisionError("a bug")

    thread = IoThread("far")
    with pytest.raises(ZeroDivisionError):
        thread.submit(failing(), 30).result(60)
    thread.close(nothing(), nothing())


def test_work_that_cancels_itself_is_a_sentence() -> None:
    async def breaking() -> None:
        raise asyncio.CancelledError

    thread = IoThread("far")
    with pytest.raises(CloudUnavailable, match="'far'"):
        thread.submit(breaking(), 30).result(60)
    thread.close(nothing(), nothing())


def test_cancelling_a_future_cancels_the_work() -> None:
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            cancelled.set()

    thread = IoThread("far")
    future = thread.submit(work(), 30)
    thread.submit(nothing(), 30).result(60)
    assert future.cancel()
    assert cancelled.wait(60)
    thread.close(nothing(), nothing())


def test_closing_runs_both_ends_around_what_is_given_up() -> None:
    order: list[str] = []

    async def note(what: str) -> None:
        order.append(what)

    async def long() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            order.append("given up")

    others = set(threading.enumerate())
    thread = IoThread("far")
    flying = thread.submit(long(), 300)
    thread.submit(nothing(), 60).result(60)
    thread.close(note("first"), note("last"))
    assert order == ["first", "given up", "last"]
    # An answer that waits for it in another thread goes on without.
    with pytest.raises(CloudUnavailable):
        flying.result(0)
    # What else runs in this process is not its concern.
    assert not [one for one in set(threading.enumerate()) - others if one.name == "cloud"]


def test_closing_again_does_nothing() -> None:
    thread, order = IoThread("far"), []

    async def note(what: str) -> None:
        order.append(what)

    thread.close(note("first"), note("last"))
    thread.close(note("again"), note("again"))
    assert order == ["first", "last"]


def test_after_closing_work_fails_at_once() -> None:
    thread = IoThread("far")
    thread.close(nothing(), nothing())
    with pytest.raises(CloudUnavailable, match="'far'"):
        thread.submit(after(0.0), 30).result(60)


@given(st.lists(st.floats(0, 0.01), min_size=1, max_size=8), st.floats(0, 0.01))
def test_whoever_submits_while_it_closes_gets_an_end(pauses: list[float], wait: float) -> None:
    """No future stays open, whenever it was asked for."""
    thread = IoThread("far")
    ends: list[object] = []

    def ask(pause: float) -> None:
        time.sleep(pause)
        try:
            ends.append(thread.submit(after(0.001), 30).result(60))
        except CloudUnavailable as error:
            ends.append(error)

    askers = [threading.Thread(target=ask, args=(pause,)) for pause in pauses]
    for asker in askers:
        asker.start()
    time.sleep(wait)
    thread.close(nothing(), nothing())
    for asker in askers:
        asker.join(60)
    assert len(ends) == len(pauses)


def test_work_that_fails_after_it_was_given_up_is_no_alarm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody asks its future any more, and asyncio says nothing of it either."""

    async def failing(error: Exception, begun: threading.Event) -> None:
        try:
            begun.set()
            await asyncio.sleep(20)
        finally:
            raise error

    thread = IoThread("far")
    for error in (CloudUnavailable("gone."), ZeroDivisionError("a bug")):
        begun = threading.Event()
        future = thread.submit(failing(error, begun), 30)
        assert begun.wait(60)
        assert future.cancel()
    thread.submit(after(0.01), 30).result(60)
    gc.collect()
    thread.submit(nothing(), 30).result(60)
    thread.close(nothing(), nothing())
    # But a bug is a bug.
    assert [record.name for record in caplog.records] == ["edgewise.cloud.io_thread"]
    assert "a bug" in caplog.text
