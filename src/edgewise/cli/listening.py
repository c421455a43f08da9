"""Options of the commands that listen."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from edgewise.errors import UsageError

if TYPE_CHECKING:
    import ssl

CertificateFile = Annotated[
    Path | None, typer.Option("--certificate", help="TLS certificate, PEM.")
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


class ListenFlags(NamedTuple):
    """The flags of these names."""

    certificate: Path | None
    private_key: Path | None
    connections: int | None

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.certificate is not None

    def require_whole(self) -> None:
        """Raises `UsageError` for half of what TLS needs."""
        if (self.certificate is None) != (self.private_key is None):
            raise UsageError("TLS needs both --certificate and --private-key.")

    def opened(self, *, reserve: int) -> tuple[int, "ssl.SSLContext | None"]:
        """How many connections there may be, and their TLS.

        `reserve` open files are kept for others. Raises `UsageError`.
        """
        from edgewise.listening.sockets import connections_for, tls_context

        most = connections_for(self.connections, reserve=reserve)
        if self.certificate is None or self.private_key is None:
            return most, None
        return most, tls_context(self.certificate, self.private_key)


def require_extra(extra: str, *modules: str) -> None:
    """Raise `UsageError` if a module of an extra is not installed."""
    for name in modules:
        if find_spec(name) is None:
            raise UsageError(f"This needs {name}: pip install 'edgewise[{extra}]'.")
