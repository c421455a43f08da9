"""Bounds of connections to servers, and plain words for what goes wrong with them."""

import os
import socket
import ssl
from collections.abc import Iterator

import httpcore2
import httpx2

MAX_REPLY = 4 << 20
"""Bytes of a reply at most. No encoding is asked for: of what is compressed nobody knows the size.
"""

_BROKEN = (httpx2.NetworkError, httpcore2.NetworkError)
_CONNECTING = (httpx2.ConnectError, httpcore2.ConnectError)
_PROTOCOL = (httpx2.RemoteProtocolError, httpcore2.RemoteProtocolError)

ERRORS = (
    *(httpx2.HTTPError, httpx2.InvalidURL, httpcore2.ProxyError, httpcore2.UnsupportedProtocol),
    *(*_BROKEN, *_PROTOCOL, OSError, UnicodeError),
)
"""Whatever a client raises where a connection cannot be made or kept."""

IDLE_SECONDS = 4.0
"""How long an idle connection is kept: a little less than llama-server's 5 s."""

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


def hung_up(error: BaseException) -> bool:
    """Whether the connection was closed, or broke, before any reply."""
    if isinstance(error, _PROTOCOL):
        # Other errors of this class are a reply, if none that can be read.
        return "disconnected" in str(error)
    return isinstance(error, _BROKEN) and not isinstance(error, _CONNECTING)


def why(error: BaseException) -> str:
    """Describes an error in plain words; else by the system's message, or by its class."""
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
    """An error and those that it comes from."""
    for _ in range(8):
        if error is None:
            return
        yield error
        if isinstance(error, BaseExceptionGroup):
            yield from error.exceptions
        error = error.__cause__ or error.__context__
