"""An event loop in a thread of its own, for the connections of a cloud model."""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from edgewise.cloud.base import failed
from edgewise.errors import CloudTimeout, CloudUnavailable, EdgewiseError

CLOSING_SECONDS = 0.02
"""TLS says goodbye in the loop's next turns."""

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class IoThread:
    """Runs coroutines with a deadline; callers get `concurrent.futures.Future`s."""

    def __init__(self, name: str) -> None:
        """Errors call the cloud model `name`."""
        self._name = name
        self._closed = False
        self._submitting = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cloud", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, _T], deadline: float) -> "Future[_T]":
        """Run `work`, at most `deadline` seconds; the future fails with `CloudTimeout` then.

        After `close` it fails with `CloudUnavailable` at once.
        """
        with self._submitting:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(self._bounded(work, deadline), self._loop)
        work.close()
        return failed(CloudUnavailable(f"The connection to {self._name!r} was closed."))

    def close(self, first: Coroutine[Any, Any, None], last: Coroutine[Any, Any, None]) -> None:
        """Run `first`, cancel what still runs, run `last`, stop. Later calls do nothing."""
        with self._submitting:
            closed, self._closed = self._closed, True
        if closed:
            first.close()
            last.close()
            return
        asyncio.run_coroutine_threadsafe(self._end(first, last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _bounded(self, work: Coroutine[Any, Any, _T], deadline: float) -> _T:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(_heard)
        try:
            async with asyncio.timeout(deadline):
                return await work
        except TimeoutError as error:
            raise CloudTimeout(f"{self._name!r} did not answer within {deadline:g} s.") from error
        except asyncio.CancelledError as error:
            if self._closed:
                raise CloudUnavailable(f"The connection to {self._name!r} was closed.") from error
            if task.cancelling():
                raise
            # Its owner did not give it up: something on the way did.
            raise CloudUnavailable(f"The call to {self._name!r} was broken off.") from error

    async def _end(self, first: Coroutine[Any, Any, None], last: Coroutine[Any, Any, None]) -> None:
        await first
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await last
        await asyncio.sleep(CLOSING_SECONDS)


def _heard(task: "asyncio.Task[Any]") -> None:
    """Log a bug in work that was cancelled: nobody reads its result."""
    error = None if task.cancelled() else task.exception()
    if error is not None and task.cancelling() and not isinstance(error, EdgewiseError):
        _log.error("work that was given up failed", exc_info=error)
