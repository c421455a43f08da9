"""What a request that was not answered came to, as a `CloudError`."""

import os

import aiohttp

from edgewise.errors import CloudError, CloudRefused, CloudRejected, CloudUnavailable

MAX_REQUEST_ID = 64
"""Longest request id that is kept of an engine's, characters."""


_SAID: dict[type[Exception], str] = {
    aiohttp.ClientConnectorDNSError: "its name is not found",
    aiohttp.ClientConnectorSSLError: "the TLS handshake failed",
    aiohttp.ServerDisconnectedError: "it hung up",
    TimeoutError: "it did not answer in time",
}


class Redirected(CloudRejected):
    """The address leads to another, which may be anybody's: keys and prompts do not follow."""


def not_now(
    url: str, status: int, request_id: str | None = None, later: float | None = None
) -> CloudError | None:
    """What an HTTP status says of the address, the key or the moment; None for any other.

    `later` is in how many seconds it wants to be asked again, where it said so.
    """
    if 300 <= status < 400:
        return Redirected(
            f"{url!r} redirects elsewhere (HTTP {status}), and no redirect is followed",
            hint="give the address that it leads to",
            request_id=bounded(request_id),
        )
    if status in (401, 403):
        return CloudRefused(
            f"{url!r} refused the key",
            hint="set EDGEWISE_CLOUD_KEY, or the variable that holds its key, to one it accepts",
            request_id=bounded(request_id),
        )
    if status in (408, 429) or status >= 500:
        busy = CloudUnavailable(
            f"{url!r} is not ready (HTTP {status})",
            hint="try again " + ("shortly" if later is None else f"in {later:g} s"),
            request_id=bounded(request_id),
        )
        busy.retry_after = later if status in (429, 503) else None
        return busy
    return None


def unreachable(url: str, error: Exception) -> CloudUnavailable:
    """Why no connection could be made or kept."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return CloudUnavailable(
            f"The certificate of {url!r} is not trusted",
            hint="for a private authority set SSL_CERT_FILE to its certificate",
        )
    hint = "check the address and that it runs"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        hint = "check the address: a server without TLS is at http://"
    return CloudUnavailable(f"The cloud at {url!r} cannot be reached ({_why(error)})", hint=hint)


def _why(error: Exception) -> str:
    """In words that are no library's, as far as there are some."""
    for kind, said in _SAID.items():
        if isinstance(error, kind):
            return said
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number).lower() if number else type(error).__name__


def bounded(request_id: str | None) -> str | None:
    """What can stand in a frame, a log and a terminal."""
    if not request_id:
        return None
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in request_id)[
        :MAX_REQUEST_ID
    ]
