"""A proxy that keeps what devices send: bodies of HTTP requests, frames to a gateway."""

import asyncio
from contextlib import closing

import aiohttp
import msgspec
from aiohttp import web

from edgewise.wire.protocol import PATH, Ask, Prefetch, from_device
from tests.background import Served


class Recorder(Served):
    """Forwards to `target`, on 127.0.0.1 in a thread of its own; `messages` are what went up."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.messages: list[bytes] = []
        self._sockets: set[web.WebSocketResponse] = set()
        super().__init__()
        self._http: aiohttp.ClientSession = self.do(_client())
        routes = [web.get(PATH, self._session), web.route("*", "/{path:.*}", self._request)]
        self.url = f"http://127.0.0.1:{self.serve(routes)}"

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return sum(map(len, self.messages))

    @property
    def ids(self) -> int:
        return sum(len(ids_of(message)) for message in self.messages)

    def forget(self) -> None:
        """Begin anew."""
        self.messages.clear()

    def cut(self) -> None:
        """Close the gateway sessions that go through here."""
        self.do(self._cut())

    async def _hang_up(self) -> None:
        await self._cut()
        await super()._hang_up()
        await self._http.close()

    async def _cut(self) -> None:
        for socket in list(self._sockets):
            await socket.close()

    async def _request(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if body:
            self.messages.append(body)
        headers = {k: v for k, v in request.headers.items() if k.lower() != "host"}
        try:
            async with self._http.request(
                request.method, self.target + request.path, data=body or None, headers=headers
            ) as far:
                kind = far.headers.get("content-type", "application/json")
                return web.Response(
                    status=far.status, body=await far.read(), headers={"Content-Type": kind}
                )
        except aiohttp.ClientError:
            # As its engine: the connection breaks off.
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=502)

    async def _session(self, request: web.Request) -> web.StreamResponse:
        near = web.WebSocketResponse()
        await near.prepare(request)
        self._sockets.add(near)
        try:
            async with self._http.ws_connect(self.target + PATH) as far:
                down = asyncio.create_task(_down(far, near))
                async for message in near:
                    self.messages.append(message.data)
                    await far.send_bytes(message.data)
                await far.close()
                await down
        finally:
            self._sockets.discard(near)
        return near


async def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession()


async def _down(far: aiohttp.ClientWebSocketResponse, near: web.WebSocketResponse) -> None:
    async for message in far:
        await near.send_bytes(message.data)
    await near.close()


def ids_of(message: bytes) -> list[int]:
    """The token ids in a request's body or in a frame."""
    if message[:1] == b"{":
        body = msgspec.json.decode(message)
        return body.get("prompt") or body.get("input_ids") or body.get("token_ids") or []
    frame = from_device(message)
    return frame.ids if isinstance(frame, Ask | Prefetch) else []


def recording(target: str) -> "closing[Recorder]":
    """A proxy to `target` until the block ends."""
    return closing(Recorder(target))
