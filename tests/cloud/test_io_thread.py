"""The thread that connections live in: deadlines, cancelling, an end that leaves nothing."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.engine import IoThread
from edgewise.errors import CloudTimeout, CloudUnavailable


async def nothing() -> None:
    pass


async def after(seconds: float, value: int = 7) -> int:
    await asyncio.sleep(seconds)
    return value


@pytest.fixture
def thread() -> Iterator[IoThread]:
    made = IoThread("http://far")
    yield made
    made.close(nothing())


async def fails(error: BaseException) -> None:
    raise error


def test_a_result_comes_back(thread: IoThread) -> None:
    assert thread.submit(after(0.0), 30).result(60) == 7


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (lambda: after(200), CloudTimeout),
        (lambda: fails(ZeroDivisionError("a bug")), ZeroDivisionError),
        (lambda: fails(asyncio.CancelledError()), CloudUnavailable),
    ],
)
def test_what_goes_wrong_comes_back(
    thread: IoThread, work: Callable[[], Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as raised:
        thread.submit(work(), 0.05 if error is CloudTimeout else 30).result(60)
    assert error is ZeroDivisionError or "'http://far'" in str(raised.value)


def test_cancelling_a_future_cancels_the_work(thread: IoThread) -> None:
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            cancelled.set()

    future = thread.submit(work(), 30)
    thread.submit(nothing(), 30).result(60)
    assert future.cancel()
    assert cancelled.wait(60)


def test_closing_gives_up_what_runs_and_then_hangs_up() -> None:
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
    thread.close(note("last"))
    thread.close(note("again"))
    assert order == ["given up", "last"]
    # An answer that waits for it in another thread goes on without.
    with pytest.raises(CloudUnavailable):
        flying.result(0)
    with pytest.raises(CloudUnavailable):
        thread.submit(after(0.0), 30).result(60)
    # What else runs in this process is not its concern.
    assert not [one for one in set(threading.enumerate()) - others if one.name == "cloud"]


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
    thread.close(nothing())
    for asker in askers:
        asker.join(60)
    assert len(ends) == len(pauses)


def test_work_that_fails_after_it_was_given_up_is_no_alarm(
    thread: IoThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody asks its future any more, and asyncio says nothing of it either."""

    async def failing(error: Exception, begun: threading.Event) -> None:
        try:
            begun.set()
            await asyncio.sleep(20)
        finally:
            raise error

    for error in (CloudUnavailable("gone."), ZeroDivisionError("a bug")):
        begun = threading.Event()
        future = thread.submit(failing(error, begun), 30)
        assert begun.wait(60)
        assert future.cancel()
    thread.submit(after(0.01), 30).result(60)
    gc.collect()
    thread.submit(nothing(), 30).result(60)
    # But a bug is a bug.
    assert [record.name for record in caplog.records] == ["edgewise.cloud.engine"]
    assert "a bug" in caplog.text
