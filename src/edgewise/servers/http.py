"""Settings of HTTP clients, verification of TLS certificates, and words for connection errors."""

import os
import socket
import ssl
from collections.abc import Iterator
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import httpx2

MAX_REPLY = 4 << 20
"""Most bytes of a reply."""

_BROKEN = (httpx2.NetworkError, httpcore2.NetworkError)
_CONNECTING = (httpx2.ConnectError, httpcore2.ConnectError)
_PROTOCOL = (httpx2.RemoteProtocolError, httpcore2.RemoteProtocolError)

ERRORS = (
    *(httpx2.HTTPError, httpx2.InvalidURL, httpcore2.ProxyError, httpcore2.UnsupportedProtocol),
    *(*_BROKEN, *_PROTOCOL, OSError, UnicodeError),
)
"""All exceptions of a client whose connection cannot be made or kept."""

# A little less than llama-server's 5 s.
IDLE_SECONDS = 4.0
"""How long an idle connection is kept."""

UNTRUSTED, NO_TLS = "its certificate is not trusted", "the TLS handshake failed"

_WHY: tuple[tuple[type[BaseException], str], ...] = (
    (ssl.SSLCertVerificationError, UNTRUSTED),
    (ssl.SSLError, NO_TLS),
    (socket.gaierror, "its name is not found"),
    (httpx2.InvalidURL, "its name cannot be one"),
    (UnicodeError, "its name cannot be one"),
    (TimeoutError, "it did not answer in time"),
    (httpx2.TimeoutException, "it did not answer in time"),
)


def tls_of(url: str) -> ssl.SSLContext:
    """Return the TLS context for connections to `url`; that of an http:// URL trusts nobody.

    The environment's `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the machine's authorities.
    """
    if urlsplit(url).scheme != "https":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return _trusting(*map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))


# Once a process: the machine's hundred authorities take some 45 ms to read.
@cache
def _trusting(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Return Python's default context, which reads the variables that these are the values of."""
    return ssl.create_default_context()


def client_options(
    url: str, key: str | None, timeout: httpx2.Timeout | None = None
) -> dict[str, Any]:
    """Return the arguments of an httpx client of `url` that sends `key`, if any, as bearer token.

    Without a `timeout` it waits without limit. It verifies TLS certificates, keeps no cookies,
    follows no redirects, and uses neither the environment's proxies nor ~/.netrc.
    """
    bearer = {"Authorization": f"Bearer {key}"} if key else {}
    return {
        "base_url": url,
        # Compression would hide the size of a reply.
        "headers": {"Accept-Encoding": "identity", **bearer},
        # They would tell a server which answers belong together.
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        # A proxy would read what is to stay near, and ~/.netrc send the host a password.
        "trust_env": False,
        "follow_redirects": False,
        "verify": tls_of(url),
        "timeout": timeout,
        "limits": httpx2.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_SECONDS
        ),
    }


def hung_up(error: BaseException) -> bool:
    """Return whether `error` says that an open connection broke, or closed before any reply."""
    if isinstance(error, _PROTOCOL):
        # Other errors of this class mean that a reply came, though an unreadable one.
        return "disconnected" in str(error)
    return isinstance(error, _BROKEN) and not isinstance(error, _CONNECTING)


def why(error: BaseException) -> str:
    """Return why a connection failed: a phrase such as "it hung up", or the error's class name."""
    causes = list(_causes(error))
    for kind, said in _WHY:
        if any(isinstance(cause, kind) for cause in causes):
            return said
    if any(map(hung_up, causes)):
        return "it hung up"
    # As a proxy says it: httpx has it in its words, websockets has its reply.
    said = str(getattr(getattr(error, "response", None), "status_code", error))[:3]
    if said.isdecimal():
        return f"HTTP {said}"
    numbers = (one.errno for one in causes if isinstance(one, OSError) and one.errno)
    number = next(numbers, None)
    return os.strerror(number).lower() if number else type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, up to 8 levels deep."""
    for _ in range(8):
        if error is None:
            return
        yield error
        if isinstance(error, BaseExceptionGroup):
            yield from error.exceptions
        error = error.__cause__ or error.__context__
