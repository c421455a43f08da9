"""Listening sockets, TLS contexts, and how many connections the limit on open files allows."""

import errno
import ipaddress
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.errors import UsageError

if TYPE_CHECKING:
    import ssl

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names and addresses by which this machine reaches itself."""

BACKLOG = 1024
"""Connections that may wait to be accepted."""

ACCEPTS = 16
"""Connections that the event loop accepts at a time."""

DEFAULT_CONNECTIONS = 10_000
"""Most connections if the user sets no limit."""

# Open files for logs, models and the event loop, and connections accepted but not yet counted.
_RESERVED = 48 + 4 * ACCEPTS


def listen(host: str, port: int) -> socket.socket:
    """Open a listening TCP socket; port 0 takes any free one. Raises `UsageError` on failure."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        # Else no such name is a TypeError, which leaves the socket open.
        host.encode("idna")
        made = socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        # Some versions of Python repeat the address after the system's words.
        reason = str(getattr(error, "strerror", None) or error).partition(" (while ")[0]
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise UsageError(
            f"Cannot listen on {_at(host, port)}: {reason}",
            hint="free it, or use another port" if taken else "use another address or port",
        ) from error
    # Connections inherit it, which asyncio leaves off: a body would wait 40 ms behind its head.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def address_of(listening: socket.socket, host: str, *, tls: bool) -> str:
    """Return the URL of a listening socket: `host` with the socket's port, https if `tls`."""
    return f"{'https' if tls else 'http'}://{_at(host, listening.getsockname()[1])}"


def is_loopback(host: str) -> bool:
    """Return whether `host` is localhost or a loopback address, which only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tls_context(certificate: Path, private_key: Path) -> "ssl.SSLContext":
    """Return a server's TLS context from a certificate chain and its private key, both PEM files.

    Raises `UsageError` if they cannot be read or do not match, or if the key has a password.
    """
    import ssl

    # Else OpenSSL asks for it on the terminal, and the server waits.
    def no_password() -> str:
        raise ValueError("the key has a password")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, private_key, password=no_password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UsageError(
            f"{str(certificate)!r} and {str(private_key)!r} are not a certificate and its private "
            f"key in PEM ({reason})",
            hint="give the chain, and a key without a password",
        ) from error
    return context


def connections_for(asked: int | None, *, reserve: int) -> int:
    """Return how many connections to allow, so that none fails for want of a file descriptor.

    `asked` is the user's number; None: `DEFAULT_CONNECTIONS`, or as many as fit, at least 16.
    `reserve` open files are kept for other uses, such as connections to engines. The process's
    limit on open files is raised as far as possible. Raises `UsageError` if it is still too low.
    """
    room = (limit := _most_files()) - reserve - _RESERVED
    wanted = asked or 16
    if wanted > room:
        raise UsageError(
            f"{wanted} connections need {wanted + limit - room} open files and this process may "
            f"have {limit}",
            hint="raise its limit (ulimit -n), or allow fewer",
            setting="connections",
        )
    return asked or min(DEFAULT_CONNECTIONS, room)


def _most_files() -> int:
    """Raise the limit on open files as far as the system allows, and return it."""
    if sys.platform == "win32":
        return 1 << 16
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS names a hard limit that it does not give.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def _at(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
