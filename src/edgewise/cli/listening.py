"""Options, sockets and checks of the commands that listen: `serve` and `gateway`."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from edgewise.errors import UsageError
from edgewise.listening.sockets import address_of, connections_for, is_loopback, listen, tls_context

if TYPE_CHECKING:
    import socket

Certificate = Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")]
PrivateKey = Annotated[Path | None, typer.Option(help="TLS private key, PEM.")]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")]
Connections = Annotated[
    int | None,
    typer.Option(
        min=1, help="Maximum connections; default: 10000, or what the open-file limit allows."
    ),
]


class Listening(NamedTuple):
    """A listening socket, its URL, and the limits of its server.

    `limits` has the keys "connections" (how many may be open) and "tls" (an `SSLContext` or None).
    """

    socket: "socket.socket"
    url: str
    limits: dict[str, Any]


@contextmanager
def listening_at(
    host: str,
    port: int,
    tls: tuple[Path | None, Path | None],
    connections: int | None,
    *,
    reserve: int,
) -> Generator[Listening]:
    """Listen on `host` and `port` while the block runs; yield the socket as a `Listening`.

    `tls` holds the files of the certificate and its private key (both None: no TLS). At most
    `connections` may be open (None: a default); `reserve` open files are kept for other uses.
    Raises `UsageError` if the port is taken or the TLS files or limits cannot be used.
    """
    certificate, private_key = tls
    if (certificate is None) != (private_key is None):
        raise UsageError("TLS needs both --certificate and --private-key.")
    with listen(host, port) as opened:
        most = connections_for(connections, reserve=reserve)
        secured = tls_context(certificate, private_key) if certificate and private_key else None
        url = address_of(opened, host, tls=secured is not None)
        yield Listening(opened, url, {"connections": most, "tls": secured})


def require_guarded(host: str, keys: Path | None, key: str | None = None, *, ways: str) -> None:
    """Raise `UsageError` unless a server on `host` has an API key, or only this machine reaches it.

    Also raised if the key file `keys` is missing, if the single key `key` is not printable ASCII
    without blanks around it, or if both are given. `ways`, for the message: flags that set a key.
    """
    if keys is not None and key is not None:
        raise UsageError("--api-key and --keys exclude each other; give one.")
    # Clients send other keys in encodings of their own, and without the blanks around them.
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
        raise UsageError("--api-key must be printable ASCII without blanks around it; set another.")
    if keys is None and not key and not is_loopback(host):
        raise UsageError(
            f"Without a key anyone who can reach {host} could use the models; give {ways}."
        )
    if keys is not None and not os.path.exists(keys):
        raise UsageError(f"There is no key file {str(keys)!r}; create it with edgewise keys add.")


def require_extra(extra: str, *modules: str) -> None:
    """Raise `UsageError` if one of `modules`, which the package's `extra` installs, is missing."""
    for name in modules:
        if find_spec(name) is None:
            raise UsageError(f"This needs {name}: pip install 'edgewise[{extra}]'.")
