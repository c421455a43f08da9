"""Addresses to listen on."""

import errno
import ipaddress
import socket

from edgewise.errors import UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""What this machine calls itself."""

BACKLOG = 1024
"""Connections that may wait to be taken."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; 0 is any free port. Raises `UsageError` where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        # Of some Python says the address once more behind the system's words.
        reason = str(getattr(error, "strerror", None) or error).partition(" (while ")[0]
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise UsageError(
            f"{_at(host, port)} cannot be listened on: {reason}",
            hint="free it, or take another port" if taken else "take another address or port",
        ) from error


def address_of(listening: socket.socket, host: str, *, tls: bool) -> str:
    """The URL at which `host` is reached."""
    return f"{'https' if tls else 'http'}://{_at(host, listening.getsockname()[1])}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _at(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
