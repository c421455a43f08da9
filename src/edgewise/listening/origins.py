"""Origin check: a browser lets any page send requests here, and says whose page it is."""

import logging
import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from edgewise.errors import UsageError

log = logging.getLogger("edgewise.listening")

ANY = "*"

# A scheme, a name or an address, a port: no path, no user.
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^\s/?#@:\[\]]+)(:[1-9][0-9]{0,4})?")


class OriginCheck:
    """Refuses requests and WebSockets from pages that are not this server's own.

    Browsers send `Origin` with everything but plain loads; other clients need not. A page whose
    name was made to point here has this server's address, so `Host` must be a name of this server.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Sequence[str] = (ANY,), origins: Sequence[str] = ()
    ) -> None:
        """`hosts` are this server's names, `origins` those of other pages that may ask."""
        self._app = app
        self._hosts, self._origins = frozenset(hosts), frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] in ("http", "websocket"):
            refusal = self._refusal(Headers(scope=scope), scope["scheme"])
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, why = refusal
        peer = scope["client"][0] if scope.get("client") else "?"
        log.info("a request was refused: %s", why, extra={"peer": peer})
        error = {"message": why, "type": "invalid_request_error", "param": None, "code": None}
        response = JSONResponse({"error": error}, status, {"Connection": "close"})
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

    Behind a proxy with TLS a page has https and this server sees http, never the reverse.
    """
    own = scheme.replace("ws", "http")
    return bool(host) and origin in (f"{own}://{host}", f"https://{host}")


def _name(host: str) -> str:
    """A `Host` without its port; an IPv6 address without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def require_origin(origin: str, *, setting: str = "cors_origin") -> str:
    """`origin` as browsers spell it. Raises `UsageError` where no page can have it."""
    if origin == ANY:
        return origin
    parts = _ORIGIN.fullmatch(origin.lower())
    if parts is None:
        raise UsageError(
            f"{origin!r} is not an origin",
            hint="write it as browsers do, such as https://my.page or http://localhost:3000",
            setting=setting,
        )
    # Browsers leave out the port that the scheme stands for.
    return origin.lower().removesuffix({"http": ":80", "https": ":443"}.get(parts[1], ""))
