"""The origin check: refuses requests that a browser sends here for a page of another site."""

import ipaddress
import logging
import re
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from edgewise.errors import UsageError

log = logging.getLogger("edgewise.listening")

ANY = "*"
"""Stands for every host or every origin."""

# Most characters of a header that an error repeats.
_LONGEST = 300

# No pattern: it would match nothing that a browser sends.
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
# A scheme, a host, a port: no path, no user.
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^\s/?#@:\[\]]+|\[[^\]]*\])(?::([1-9][0-9]{0,4}))?")


class OriginCheck:
    """ASGI middleware that refuses requests and WebSockets from web pages of other origins.

    Pages of this server pass, and requests without `Origin`. `Host`, if sent, must be in `hosts`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Sequence[str] = (ANY,),
        origins: Sequence[str] = (),
        ways: tuple[str, str] = ("--allow-host {}", "--cors-origin {}"),
    ) -> None:
        """`hosts` are this server's names, `origins` the other origins whose pages may ask.

        `ways` name, for messages, the flags that allow one more host or origin ({}: its place).
        """
        self._app, self._ways = app, ways
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
        log.warning("a request was refused: %s", why, extra={"peer": peer})
        error = {"message": why, "type": "invalid_request_error", "param": None, "code": None}
        response = JSONResponse({"error": error}, status, {"Connection": "close"})
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(response)
        else:
            await response(scope, receive, send)

    def _refusal(self, headers: Headers, scheme: str) -> tuple[int, str] | None:
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        # DNS rebinding: a page's own host name is made to point to this server. Health checks in
        # HTTP/1.0 name no host; a browser always does.
        if host and not self._hosts & {ANY, _name(host)}:
            named = _name(host)
            why = f"This server has another name than {named[:80]!a}"
            return 400, self._told(why, self._ways[0], require_host, named)
        # A browser sends it unless it just loads something, as an image; other programs need not.
        if origin and not self._origins & {ANY, origin} and not _is_own(origin, host, scheme):
            why = "Pages of other origins may not ask here"
            return 403, self._told(why, self._ways[1], require_origin, origin)
        return None

    def _told(self, why: str, way: str, require: Callable[[str], str], value: str) -> str:
        """Return a message: what is wrong, and the flag that would allow it, if there is one."""
        try:
            allowed = require(value) if len(value) < _LONGEST else ""
        except UsageError:
            allowed = ""
        return (
            f"{why}; to allow that, start it with {way.format(allowed)}." if allowed else f"{why}."
        )


def _is_own(origin: str, host: str, scheme: str) -> bool:
    """Return whether a page of `origin` came from this server itself."""
    own = scheme.replace("ws", "http")
    # Behind a proxy that adds TLS the page has https and this server sees http, never the reverse.
    return bool(host) and origin in (f"{own}://{host}", f"https://{host}")


def _name(host: str) -> str:
    """Return a `Host` header without its port; an IPv6 address without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def require_host(host: str) -> str:
    """Return `host` in lower case and without a final dot, an IPv6 address in its short form.

    Raises `UsageError` if it is neither a name nor an address; no port or brackets are allowed.
    """
    named = host.lower().removesuffix(".")
    if address := _address(named):
        return address
    if _HOST.fullmatch(named):
        return named
    hint = "write it without scheme, port or pattern, such as llm.example.org"
    raise UsageError(f"{host!r} is not a host's name", hint=hint, setting="allow_host")


def require_origin(origin: str, *, setting: str = "cors_origin") -> str:
    """Return `origin` as browsers spell it: https://my.page, in lower case, without a default port.

    "*", for any origin, is returned as it is. Raises `UsageError`, which names `setting`, if
    `origin` is not a scheme, a host and perhaps a port.
    """
    if origin == ANY:
        return origin
    parts = _ORIGIN.fullmatch(origin.lower())
    scheme, host, port = parts.groups() if parts else ("", "", None)
    if address := _address(host[1:-1]):
        host = f"[{address}]"
    if not (address or _HOST.fullmatch(host)) or int(port or 0) > 65535:
        raise UsageError(
            f"{origin!r} is not an origin",
            hint="write one as browsers do, such as https://my.page or http://localhost:3000; a "
            "pattern is none",
            setting=setting,
        )
    # Browsers leave out the port that the scheme stands for.
    usual = port in (None, {"http": "80", "https": "443"}.get(scheme))
    return f"{scheme}://{host}" if usual else f"{scheme}://{host}:{port}"


def _address(text: str) -> str | None:
    """Return an IPv6 address as browsers spell it; None if `text` is none."""
    try:
        return None if "%" in text else str(ipaddress.IPv6Address(text))
    except ValueError:
        return None
