"""An event loop in a thread of its own, for servers that tests talk to."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any


class Background:
    """Runs coroutines for who cannot wait in a loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self, last: Coroutine[Any, Any, Any]) -> None:
        """Run `last`, then stop."""
        self.do(last)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
