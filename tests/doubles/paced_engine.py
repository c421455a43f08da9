"""An engine slowed down to another one's pace: a proxy in front of a real llama-server."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from edgewise_lab.bench.pace import EnginePace
from tests.background import Served

_OF_ONE_HOP = frozenset(
    {"connection", "content-encoding", "content-length", "host", "keep-alive", "transfer-encoding"}
)


class PacedEngine(Served):
    """Forwards to the engine at `url` until closed; its replies leave no sooner than `pace` says.

    How much was read and written is as the reply's own meter has it.
    """

    def __init__(self, url: str, pace: EnginePace | None = None) -> None:
        super().__init__()
        self.pace = pace or EnginePace()
        self._target = url.rstrip("/")
        self._http: aiohttp.ClientSession = self.do(_client())
        port = self.serve([web.route("*", "/{path:.*}", self._forward)])
        self.url = f"http://127.0.0.1:{port}"

    def close(self, last: Coroutine[Any, Any, Any] | None = None) -> None:
        super().close(last or self._stop())

    async def _stop(self) -> None:
        await self._hang_up()
        await self._http.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        clock = asyncio.get_running_loop().time
        begun, body = clock(), await request.read()
        async with self._http.request(
            request.method,
            self._target + request.raw_path,
            data=body or None,
            headers=_passed_on(request.headers),
        ) as reply:
            data = await reply.read()
            if request.path == "/completion" and reply.status == 200:
                said = msgspec.json.decode(data)
                meter = said.get("timings", {})
                written = meter.get("predicted_n", len(said["tokens"]))
                end = begun + self.pace.of(written, meter.get("prompt_n", 1))
                await asyncio.sleep(max(0.0, end - clock()))
            return web.Response(status=reply.status, body=data, headers=_passed_on(reply.headers))


async def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OF_ONE_HOP}
