"""Around every endpoint: a limit of size, headers, counts, strict JSON."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute
from prometheus_client import Counter
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 8 << 20
"""Largest request body, bytes."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Guard:
    """Refuses bodies above `MAX_BODY`, whatever their headers promise. Counts requests by route and
    status. Adds headers that keep browsers from more than the page needs."""

    def __init__(self, app: ASGIApp, counter: Counter) -> None:
        self._app, self._counter = app, counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left = MAX_BODY

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"The body has more than {MAX_BODY >> 20} MB; send less")
            return message

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Known once routed; an unknown address gets no label of its own.
                path = getattr(scope.get("route"), "path", "other")
                self._counter.labels(path, str(message["status"])).inc()
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, limited, with_headers)


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What some editors put before UTF-8."""


class _Strict(Request):
    """Python's own reader takes NaN, numbers beyond all range and halves of characters."""

    async def json(self) -> Any:
        body = (await self.body()).removeprefix(_BYTE_ORDER_MARK)
        try:
            return msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


class JsonRoute(APIRoute):
    """An endpoint that reads such a body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await handle(_Strict(request.scope, request.receive))

        return read
