"""What stands before every endpoint: size limits, headers."""

from prometheus_client import Counter
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
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
