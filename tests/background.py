"""An event loop in a thread of its own, for servers that tests talk to."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, cast

from aiohttp import web


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
        """Run `last`, end what is left, then stop."""
        self.do(last)
        self.do(_end_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_others() -> None:
    """A TLS handshake that goes on as its server closes is a task of nobody."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Served(Background):
    """Applications on 127.0.0.1, until `close`."""

    def __init__(self) -> None:
        super().__init__()
        self.runners: list[web.AppRunner] = []

    def serve(
        self, routes: Iterable[web.RouteDef], *, port: int = 0, ssl: Any = None, **options: Any
    ) -> int:
        """Listen; returns the port, any free one for 0. `options` are `web.Application`'s."""
        app = web.Application(client_max_size=8 << 20, **options)
        app.add_routes(routes)
        return int(self.do(self._listen(app, port, ssl)))

    def hang_up(self) -> None:
        """Close every connection and stop listening."""
        self.do(self._hang_up())

    def close(self, last: Coroutine[Any, Any, Any] | None = None) -> None:
        """Stop for good."""
        super().close(last or self._hang_up())

    async def _listen(self, app: web.Application, port: int, ssl: Any) -> int:
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=ssl).start()
        self.runners.append(runner)
        return int(runner.addresses[0][1])

    async def _hang_up(self) -> None:
        sites = [cast("Any", site) for runner in self.runners for site in runner.sites]
        for listening in [one for site in sites for one in site._server.sockets]:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        # What was accepted becomes a connection, which its application can close.
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.gather(*(runner.cleanup() for runner in self.runners))
        self.runners.clear()
