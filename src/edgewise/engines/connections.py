"""Connections to cloud models: allowed addresses, the proxy to use, and reasons for failure."""

import asyncio
import selectors
import ssl
from collections.abc import Generator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import httpcore2
import httpx2

from edgewise.addresses import without_endpoint
from edgewise.errors import CloudUnavailable, UsageError
from edgewise.servers.http import IDLE_SECONDS, MAX_REPLY, NO_TLS, UNTRUSTED, tls_of, why

# Seconds until another address of a host is tried beside the first.
_BESIDE = 0.25
_EXEMPT = "check the proxy, or add the cloud's host to NO_PROXY"


def checked_address(url: str) -> str:
    """Return `url` without an endpoint's path at its end, such as `/v1/chat/completions`.

    Raises `UsageError` if it is no http(s) address, has a user or password or an unusable proxy.
    """
    require_keyless(url)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not an http:// or https:// address of a cloud engine.")
    proxy_of(url)
    return parts._replace(path=without_endpoint(parts.path)).geturl()


def require_keyless(url: str, role: str = "cloud") -> None:
    """Raise `UsageError` if `url` is invalid, or has a user or password; the error hides these.

    The error says whose address it is: `role` is "cloud" or "edge".
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"Invalid {role} URL ({error})") from error
    if parts.username or parts.password:
        raise UsageError(
            f"The address of the {role} model holds a key",
            hint=f"put the key into EDGEWISE_{role.upper()}_KEY instead",
        )


def unreachable(url: str, error: Exception) -> CloudUnavailable:
    """Return the error to raise for a connection to `url` that failed with `error`."""
    if (reason := why(error)) == UNTRUSTED:
        return CloudUnavailable(
            f"The certificate of {url!r} is not trusted",
            hint="for a private authority set SSL_CERT_FILE to its certificate",
        )
    name, proxy = proxy_of(url)
    by = f" by the proxy that {name} names" if proxy else ""
    hint = "check the address and that it runs"
    if name:
        hint += f"; {_EXEMPT}" if proxy else f" ({name} is used for https:// alone)"
    if reason == NO_TLS:
        hint = "check the address: a server without TLS is at http://"
    return CloudUnavailable(f"The cloud at {url!r} cannot be reached{by} ({reason})", hint=hint)


def proxy_of(url: str) -> tuple[str, str | None]:
    """Return the environment variable that names a proxy for `url`, and the proxy's address.

    They are "" and None if none is set for `url`, or its host is this machine or in NO_PROXY.
    For http:// the address is always None: no proxy is used, even if one is named. Raises
    `UsageError` if the proxy for an https:// URL is not at an http:// or https:// address.
    """
    parts, known = urlsplit(url), getproxies_environment()
    host, kind = parts.hostname or "", parts.scheme if parts.scheme in known else "all"
    if kind not in known or _is_here(host) or proxy_bypass(parts.netloc):
        return "", None
    name, address = f"{kind.upper()}_PROXY", known[kind]
    # Of https a proxy sees nothing but encrypted bytes; of http it could read everything.
    if parts.scheme != "https":
        return name, None
    address = address if "://" in address else f"http://{address}"
    try:
        proxy = urlsplit(address)
        usable = proxy.scheme in ("http", "https") and proxy.hostname and proxy.port != 0
    except ValueError:
        usable = False
    # Refused, since a proxy must not be bypassed unasked.
    if not usable or not address.isprintable() or " " in address:
        raise UsageError(
            f"{name} names a proxy for {url!r} that is none at an http:// address, such as a "
            "SOCKS proxy",
            hint=f"name an HTTP proxy there, or in HTTPS_PROXY; {_EXEMPT}",
        )
    return name, address


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def connections(url: str) -> httpcore2.AsyncConnectionPool:
    """Return a pool of connections to a cloud at `url`, through its proxy (`proxy_of`) if any.

    The pool keeps no cookies and follows no redirects.
    """
    tls, proxy, address = tls_of(url), None, proxy_of(url)[1]
    if address is not None:
        named = httpx2.Proxy(address)
        secure = tls if named.url.scheme == "https" else None
        place = str(named.url.copy_with(raw_path=b"/"))
        proxy = httpcore2.Proxy(place, named.raw_auth, ssl_context=secure)
    # The layer below httpx: a request takes a third of the time.
    return httpcore2.AsyncConnectionPool(
        ssl_context=tls,
        proxy=proxy,
        max_connections=None,
        max_keepalive_connections=None,
        keepalive_expiry=IDLE_SECONDS,
        network_backend=_Network(),
    )


class _Network(httpcore2.AsyncNetworkBackend):
    """Opens connections by asyncio's own streams."""

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> "_Stream":
        # A race of addresses may leave a socket open if it is cancelled; this machine needs none.
        beside = None if _is_here(host) else _BESIDE
        with _failing(httpcore2.ConnectError):
            reader, writer = await asyncio.open_connection(
                host, port, limit=MAX_REPLY, happy_eyeballs_delay=beside
            )
        return _Stream(reader, writer)


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection that sends a request in one piece, when its reply is first read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._unsent = self._last = b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # So a request cannot be cancelled between being counted and being sent.
        self._unsent += buffer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._unsent:
            data, self._unsent = self._unsent, b""
            self._writer.write(data)
            # Who hangs up may have answered before.
            with suppress(OSError):
                await self._writer.drain()
        if not (data := self._last):
            with _failing(httpcore2.ReadError):
                data = await self._reader.read(max_bytes)
        # The last byte is returned apart: if a reply ends before it, the server has sent more than
        # was asked for.
        self._last = data[-1:] if len(data) > 1 else b""
        return data[:-1] or data

    async def aclose(self) -> None:
        self._writer.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> "_Stream":
        with _failing(httpcore2.ConnectError):
            # These bytes would pass for encrypted ones.
            if self._last or self._unasked():
                raise ssl.SSLError("unencrypted bytes before the handshake")
            await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        return self

    def get_extra_info(self, info: str) -> Any:
        if info != "is_readable":
            return self._writer.get_extra_info(info)
        # What comes while nobody asks, be it the end, is no reply to who asks next.
        gone = self._reader.exception() or self._writer.is_closing()
        return bool(gone or self._last) or self._unasked() is not None or self._unread()

    def _unread(self) -> bool:
        """Return whether bytes came that the event loop has not read yet, as when it is busy."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._writer.get_extra_info("socket"), selectors.EVENT_READ)
            return bool(selector.select(0))

    def _unasked(self) -> bytes | None:
        """Take and return one byte that came unrequested: b"" at the end, None if there is none."""
        reading = self._reader.read(1)
        try:
            reading.send(None)
        except StopIteration as came:
            return came.value
        reading.close()
        return None


@contextmanager
def _failing(kind: type[Exception]) -> Generator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:
        raise kind(str(error)) from error
