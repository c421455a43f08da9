"""Keys of a gateway: a JSON file with a hash, a name and limits each.

A key is 32 random bytes, so a plain SHA-256 keeps it as safe as the key itself. The file is read
again when it changes: a key that was revoked stops working within a second.
"""

import hashlib
import hmac
import logging
import os
import secrets
import time
from pathlib import Path

import msgspec

from edgewise.errors import UsageError

_log = logging.getLogger(__name__)

PREFIX = "ew-"
CHECK_SECONDS = 0.5
MAX_FILE = 16 << 20


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key's limits: consults a second, cloud tokens a day, sessions open at once (0: none)."""

    name: str
    sha256: str
    created: str
    asks_per_second: float = 50.0
    tokens_per_day: int = 0
    sessions: int = 16


class _File(msgspec.Struct, frozen=True):
    format: int
    keys: tuple[Key, ...]


class Keys:
    """The keys of a file, looked up by what a device shows."""

    def __init__(self, path: Path | None) -> None:
        """Without a path everybody is let in, as one key without limits. Raises `UsageError`."""
        self._path = path
        self._keys: tuple[Key, ...] = ()
        self._stamp: tuple[int, int] | None = None
        self._checked = 0.0
        if path is not None:
            self._load()

    @property
    def required(self) -> bool:
        """Whether a device must show one; where not, all are one tenant."""
        return self._path is not None

    def find(self, secret: str) -> Key | None:
        """The key, in constant time; None for one that is not, or no longer, there."""
        if self._path is None:
            return ANYBODY
        self._refresh()
        shown = _hash(secret)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, shown):
                found = key
        return found

    def find_named(self, key: Key) -> Key | None:
        """The key as it stands now; None where it was revoked."""
        if self._path is None:
            return key
        self._refresh()
        return next((k for k in self._keys if k.name == key.name and k.sha256 == key.sha256), None)

    def _refresh(self) -> None:
        if time.monotonic() - self._checked <= CHECK_SECONDS:
            return
        try:
            self._load()
        except UsageError as error:
            # A file that is being replaced must not lock everybody out.
            _log.warning("%s The keys read before stay in force.", error)

    def _load(self) -> None:
        assert self._path is not None
        self._checked = time.monotonic()
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
        except OSError as error:
            raise UsageError(
                f"The keys in {str(self._path)!r} cannot be read: {error.strerror}."
            ) from error
        if stamp != self._stamp:
            self._keys = read_keys(self._path)
            self._stamp = stamp


ANYBODY = Key(name="anybody", sha256="", created="", asks_per_second=0.0, sessions=0)
"""Who comes to a gateway without keys."""


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file, none where there is none. Raises `UsageError`."""
    if not path.exists():
        return ()
    try:
        if path.stat().st_size > MAX_FILE:
            raise UsageError(f"{str(path)!r} is larger than {MAX_FILE} bytes: no file of keys.")
        return msgspec.json.decode(path.read_bytes(), type=_File).keys
    except OSError as error:
        raise UsageError(f"The keys in {str(path)!r} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(path)!r} is no file of keys: {error}.") from error


def add_key(
    path: Path, name: str, *, asks_per_second: float, tokens_per_day: int, sessions: int
) -> str:
    """Add a key; returns it, which nobody can do later. Raises `UsageError`."""
    keys = read_keys(path)
    if any(key.name == name for key in keys):
        raise UsageError(
            f"There is a key {name!r} already", hint="revoke it or choose another name"
        )
    if not name.strip() or asks_per_second < 0 or tokens_per_day < 0 or sessions < 0:
        raise UsageError("A key needs a name, and limits of 0 (none) or more.")
    secret = PREFIX + secrets.token_urlsafe(32)
    key = Key(
        name=name,
        sha256=_hash(secret),
        created=time.strftime("%Y-%m-%d"),
        asks_per_second=asks_per_second,
        tokens_per_day=tokens_per_day,
        sessions=sessions,
    )
    _write(path, (*keys, key))
    return secret


def revoke_key(path: Path, name: str) -> None:
    """Remove a key; raises `UsageError` where there is none."""
    keys = read_keys(path)
    kept = tuple(key for key in keys if key.name != name)
    if len(kept) == len(keys):
        raise UsageError(f"There is no key {name!r} in {str(path)!r}.")
    _write(path, kept)


def _write(path: Path, keys: tuple[Key, ...]) -> None:
    """Whole or not at all, for the owner's eyes only."""
    partial = path.with_name(path.name + ".partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(_File(1, keys)), indent=2) + b"\n")
        os.replace(partial, path)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
