"""TLS certificates: read at the start, and again when they change."""

import logging
import ssl
from pathlib import Path

from edgewise.errors import UsageError

log = logging.getLogger("edgewise.listening")


class Certificate:
    """A certificate chain with its private key, both in PEM."""

    def __init__(self, certificate: Path, private_key: Path) -> None:
        """Raises `UsageError` where the two do not belong together."""
        self._files = (certificate, private_key)
        self._seen = self._stamps()
        self.context = self._loaded()

    def refresh(self) -> None:
        """Use a renewed certificate for new connections. A bad one is logged and not used."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return
            self._seen = stamps
            # Elsewhere first, so that half a renewal leaves the old pair whole.
            self._loaded()
            self.context.load_cert_chain(*self._files, password=_no_password)
            log.warning("the renewed certificate is used")
        except (UsageError, OSError) as error:
            log.warning("the certificate was not renewed: %s", error)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(*self._files, password=_no_password)
        except (OSError, ValueError) as error:
            names = " and ".join(repr(str(path)) for path in self._files)
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise UsageError(
                f"{names} are not a certificate and its private key in PEM ({reason})",
                hint="give the chain, and a key without a password",
            ) from error
        return context

    def _stamps(self) -> list[tuple[int, int, int]]:
        """Times, sizes and inodes. Raises `UsageError` where a file is missing."""
        stamps: list[tuple[int, int, int]] = []
        for path in self._files:
            try:
                state = path.stat()
            except OSError as error:
                raise UsageError(f"There is no file {str(path)!r}.") from error
            stamps.append((state.st_mtime_ns, state.st_size, state.st_ino))
        return stamps


def _no_password() -> str:
    raise ValueError("the key has a password")
