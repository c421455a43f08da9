"""Around every endpoint: size limits, headers, strict JSON, unknown paths."""

import json
from collections.abc import Callable, Coroutine
from functools import cached_property
from re import Pattern
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from prometheus_client import Counter
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 8 << 20
"""Largest request body, bytes."""

_PAGE_POLICY = "default-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
# The API's own documentation starts from an inline script.
_DOCS_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; frame-ancestors 'none'"
)


class BodyLimit:
    """Refuses bodies above `MAX_BODY`, whatever their headers promise."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left = MAX_BODY

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"The body has more than {MAX_BODY >> 20} MB; send less")
            return message

        await self._app(scope, counted, send)


class Counted:
    """Counts requests by route and status."""

    def __init__(self, app: ASGIApp, counter: Counter) -> None:
        self._app, self._counter = app, counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Known once routed; an address that is none gets no label of its own.
                path = getattr(scope.get("route"), "path", "other")
                self._counter.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


class Headers:
    """Adds headers that keep browsers from more than the page needs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        policy = _DOCS_POLICY if scope.get("path") == "/docs" else _PAGE_POLICY

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = policy
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
            await send(message)

        await self._app(scope, receive, with_headers)


_MARK = b"\xef\xbb\xbf"
"""What some editors put before UTF-8."""


class _Strict(Request):
    """Python's own reader takes NaN, numbers beyond all range and halves of characters."""

    async def json(self) -> Any:
        body = (await self.body()).removeprefix(_MARK)
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


_READING = ("GET", "HEAD")


class Elsewhere:
    """Mounted behind all of `app`'s endpoints, in front of `page`.

    An endpoint's path with another method is a 405, a path that is none a 404, whatever the method.
    """

    def __init__(self, app: FastAPI, page: ASGIApp) -> None:
        self._app, self._page = app, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._require(scope["method"], scope["path"])
        await self._page(scope, receive, send)

    def _require(self, method: str, path: str) -> None:
        """Raise `HTTPException` where it cannot be one of the page's files."""
        shown = f"{method} {path[:80]!r}"
        for pattern, methods in self._endpoints:
            if pattern.match(path):
                allowed = ", ".join(methods)
                message = f"{shown} is not answered; use {allowed} there."
                raise HTTPException(405, message, headers={"Allow": allowed})
        if method not in _READING or path == "/v1" or path.startswith("/v1/"):
            message = f"{shown} is not answered; GET /openapi.json lists what is."
            raise HTTPException(404, message)

    @cached_property
    def _endpoints(self) -> list[tuple[Pattern[str], list[str]]]:
        """Patterns of the described paths, with their methods."""
        return [
            (compile_path(path)[0], [method.upper() for method in methods])
            for path, methods in self._app.openapi()["paths"].items()
        ]
