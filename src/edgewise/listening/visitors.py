"""Pages of others: a browser lets them send requests, and says whose they are."""

import logging
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from edgewise.errors import UsageError

log = logging.getLogger("edgewise.listening")

ANY = "*"


class Visitors:
    """Refuses requests and WebSockets of pages that are not this server's own.

    A page shows itself by `Origin`, which browsers send with everything but plain loads and no
    other client has to send. One whose name was made to point here is its own by that, so `Host`
    must be a name that this server has.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Sequence[str] = (ANY,), origins: Sequence[str] = ()
    ) -> None:
        """`hosts` that requests may be addressed to, `origins` of other pages that may ask."""
        self._app = app
        self._hosts, self._origins = frozenset(hosts), frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(headers, scope["scheme"])
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, why = refusal
        peer = scope["client"][0] if scope.get("client") else "?"
        log.info("a request was refused: %s", why, extra={"peer": peer})
        told = {"message": why, "type": "invalid_request_error", "param": None, "code": None}
        response = JSONResponse({"error": told}, status, {"Connection": "close"})
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(response)
        else:
            await response(scope, receive, send)

    def _refusal(self, headers: Headers, scheme: str) -> tuple[int, str] | None:
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        # Health checks in HTTP/1.0 name no host; a browser always does.
        if host and not self._hosts & {ANY, _name(host)}:
            return 400, "Invalid host header: this server has another name."
        if origin and not self._origins & {ANY, origin} and not _is_own(origin, host, scheme):
            return 403, "Pages of other origins may not ask here."
        return None


def _is_own(origin: str, host: str, scheme: str) -> bool:
    """Whether a page of `origin` came from this server itself.

    Behind a proxy that speaks TLS a page has https and this server sees http, never the reverse.
    """
    own = scheme.replace("ws", "http")
    return bool(host) and origin in (f"{own}://{host}", f"https://{host}")


def _name(host: str) -> str:
    """A `Host` without its port; an IPv6 address without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def require_origin(origin: str) -> str:
    """`origin` as browsers spell it. Raises `UsageError` where no page can have it."""
    if origin == ANY:
        return origin
    known, plain, usual = False, "", ""
    try:
        found = urlsplit(origin)
        plain = f"{found.scheme}://{found.netloc}".lower()
        usual = {"http": ":80", "https": ":443"}.get(found.scheme, "")
        known = bool(found.scheme and found.hostname) and found.port != 0
    except ValueError:
        pass
    if not known or plain != origin.lower() or "@" in plain or any(c.isspace() for c in plain):
        raise UsageError(
            f"{origin!r} is no origin",
            hint="write it as browsers do, such as https://my.page or http://localhost:3000",
            setting="cors_origin",
        )
    # Browsers leave out the port that the scheme stands for.
    return plain.removesuffix(usual)
