"""Options of the commands that listen, and what they come to."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from edgewise.errors import UsageError

if TYPE_CHECKING:
    from edgewise.listening.config import Door

CertificateFile = Annotated[
    Path | None, typer.Option("--certificate", help="TLS certificate, PEM; read again on change.")
]
PrivateKeyFile = Annotated[Path | None, typer.Option("--private-key", help="TLS private key, PEM.")]
Most = Annotated[
    int | None,
    typer.Option(
        "--connections",
        min=1,
        help="Connections at most; default 10000, or as many as the limit on open files allows.",
    ),
]
PerPeer = Annotated[
    int,
    typer.Option(
        "--connections-per-peer",
        min=0,
        help="Connections from one address at most; 0: no limit, as behind a proxy, where all come "
        "from the proxy's.",
    ),
]


class ListenFlags(NamedTuple):
    """As the flags of these names."""

    certificate: Path | None
    private_key: Path | None
    connections: int | None
    per_peer: int

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.certificate is not None

    def require_whole(self) -> None:
        """Raises `UsageError` for half of what TLS needs."""
        if (self.certificate is None) != (self.private_key is None):
            raise UsageError("TLS needs both --certificate and --private-key.")

    def door(self, listening: socket.socket, *, reserve: int) -> "Door":
        """Where connections are taken; `reserve` open files are left for others.

        Raises `UsageError` for a bad certificate, or more connections than files.
        """
        from edgewise.listening.config import Door
        from edgewise.listening.files import connections_for
        from edgewise.listening.seats import Seats
        from edgewise.listening.tls import Certificate

        most = connections_for(self.connections, reserve=reserve)
        pair = (self.certificate, self.private_key)
        certificate = Certificate(pair[0], pair[1]) if pair[0] and pair[1] else None
        return Door(listening, Seats(most, self.per_peer), certificate)
