"""Connections to clouds: TLS is verified, no cookie is kept, a proxy sees encrypted bytes alone."""

import os
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp

from edgewise.addresses import without_endpoint
from edgewise.errors import CloudUnavailable, UsageError

_IDLE_SECONDS = 4.0
_EXEMPT = "check the proxy, or add the cloud's host to NO_PROXY"

_SAID: dict[type[Exception], str] = {
    aiohttp.ClientConnectorDNSError: "its name is not found",
    aiohttp.ClientConnectorSSLError: "the TLS handshake failed",
    aiohttp.ServerDisconnectedError: "it hung up",
    TimeoutError: "it did not answer in time",
    UnicodeError: "its name cannot be one",
}


def connections(url: str, headers: Mapping[str, str], **options: Any) -> aiohttp.ClientSession:
    """Connections to a cloud, by the environment's proxy if it has one for it.

    They share no cookies: a cloud could tell by them whose answers it is asked.
    """
    tls, forever = ssl.create_default_context(), aiohttp.ClientTimeout(total=None)
    # Not `trust_env`, which reads ~/.netrc too and sends a host its password.
    options |= {
        "proxy": _proxy(url)[1],
        "headers": headers,
        "timeout": forever,
        "cookie_jar": aiohttp.DummyCookieJar(),
    }
    connector = aiohttp.TCPConnector(keepalive_timeout=_IDLE_SECONDS, ssl=tls, limit=0)
    return aiohttp.ClientSession(connector=connector, **options)


def checked_address(url: str) -> str:
    """Strips an API's `/v1`, and what a pasted address has after it.

    Raises `UsageError`, also where the environment's proxy for it cannot be used.
    """
    require_keyless(url)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not an http:// or https:// address of a cloud engine.")
    _proxy(url)
    return parts._replace(path=without_endpoint(parts.path)).geturl()


def require_keyless(url: str, role: str = "cloud") -> None:
    """Raises `UsageError`, which does not show it, for an address with a user or a password."""
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
    """The error for a connection that could not be made or kept."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return CloudUnavailable(
            f"The certificate of {url!r} is not trusted",
            hint="for a private authority set SSL_CERT_FILE to its certificate",
        )
    name, proxy = _proxy(url)
    by = f" by the proxy that {name} names" if proxy else ""
    hint = "check the address and that it runs"
    if name:
        hint += f"; {_EXEMPT}" if proxy else f" ({name} is used for https:// alone)"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        hint = "check the address: a server without TLS is at http://"
    return CloudUnavailable(
        f"The cloud at {url!r} cannot be reached{by} ({_why(error)})", hint=hint
    )


def _why(error: Exception) -> str:
    """Describes an error in plain words; else by the system's message, or by its class."""
    for kind, said in _SAID.items():
        if isinstance(error, kind):
            return said
    if isinstance(error, aiohttp.ClientResponseError) and error.status:
        return f"HTTP {error.status}"
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number).lower() if number else type(error).__name__


def _proxy(url: str) -> tuple[str, str | None]:
    """The variable that names a proxy for `url` ("" if none does), and the proxy if it is used.

    Only `https` goes by it: the proxy sees the host's name and encrypted bytes. Of `http` it would
    read everything. This machine is asked directly, and so are the hosts in NO_PROXY. Raises
    `UsageError` for a proxy that cannot be used: going around it may be what nobody wants.
    """
    parts, known = urlsplit(url), getproxies_environment()
    host, kind = parts.hostname or "", parts.scheme if parts.scheme in known else "all"
    if kind not in known or _is_here(host) or proxy_bypass(parts.netloc):
        return "", None
    name, address = f"{kind.upper()}_PROXY", known[kind]
    if parts.scheme != "https":
        return name, None
    address = address if "://" in address else f"http://{address}"
    try:
        proxy = urlsplit(address)
        usable = proxy.scheme in ("http", "https") and proxy.hostname and proxy.port != 0
    except ValueError:
        usable = False
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
