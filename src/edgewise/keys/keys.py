"""Keys of a gateway or a server: a JSON file with the hash, the name and the limits of each.

A key is 32 random bytes, so a plain SHA-256 keeps it as safe as the key itself. A running server
reads the file again and again: a revoked key stops working within a second. If the file becomes
unreadable, the keys read last stay in force until they expire: a mistake with a file must not lock
everybody out.
"""

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from edgewise.errors import UsageError

PREFIX = "ew-"

CHECK_SECONDS = 0.4
"""The file is read again so long after the last time."""

MAX_FILE = 16 << 20
MAX_NAME = 64
MOST = 10**15
"""Of any limit; more would be a mistake."""

_Limit = msgspec.Meta(ge=0, le=MOST)


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key and its limits (0: no limit).

    `asks_per_second` consults, `ids_per_second` token ids received or computed for it, and
    `sessions` open at once, at each gateway; `tokens_per_day` cloud tokens written, days of UTC.
    At a server consults are requests, and sessions are answers that wait or are being written.
    """

    name: str
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: str
    asks_per_second: Annotated[float, _Limit] = 50.0
    ids_per_second: Annotated[float, _Limit] = 20_000.0
    tokens_per_day: Annotated[int, _Limit] = 0
    sessions: Annotated[int, _Limit] = 16
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None

    def __post_init__(self) -> None:
        padded = self.name != self.name.strip()
        if not 0 < len(self.name) <= MAX_NAME or not self.name.isprintable() or padded:
            raise ValueError(
                f"a key's name has 1 to {MAX_NAME} printable characters and no space at its ends"
            )

    def expired(self, now: datetime) -> bool:
        """Whether it has expired."""
        return self.expires is not None and now >= self.expires


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file of keys."""

    format: Literal[1]
    keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        if len({key.name for key in self.keys}) < len(self.keys):
            raise ValueError("two keys have one name")


ANYBODY = Key(
    name="anybody",
    sha256="",
    created="",
    asks_per_second=0.0,
    ids_per_second=0.0,
    sessions=0,
)
"""The key of everybody, where there is no file of keys."""


class Keys:
    """The keys of a file, looked up by their secrets. Logs the names of those that change."""

    def __init__(
        self, path: Path | None, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Without a path everybody is let in, as one key without limits. Raises `UsageError`."""
        self._path, self._clock = path, clock
        self._all: tuple[Key, ...] = ()
        self._content = b""
        self._problem = ""
        self._read = time.monotonic()
        self._changes = 0
        if path is not None:
            self._content = _content(path)
            self._all = _decoded(path, self._content)
        self._in_force = self._unexpired()

    @property
    def required(self) -> bool:
        """Whether a device must show a key; otherwise all devices are one tenant."""
        return self._path is not None

    def find(self, secret: str) -> Key | None:
        """The key of a secret, in constant time; None if it is not in force."""
        if self._path is None:
            return ANYBODY
        self.refresh()
        shown, found = _hash(secret), None
        for key in self._in_force.values():
            if hmac.compare_digest(key.sha256, shown):
                found = key
        return found

    def find_named(self, key: Key) -> Key | None:
        """The key as it is now; None if it is not in force any more."""
        if self._path is None:
            return key
        self.refresh()
        known = self._in_force.get(key.name)
        return known if known is not None and known.sha256 == key.sha256 else None

    def refresh(self) -> int:
        """Read the file if that is due. Returns a number that grows with every change.

        A key that expires is a change as well.
        """
        if self._path is None or time.monotonic() - self._read < CHECK_SECONDS:
            return self._changes
        self._read = time.monotonic()
        problem = ""
        try:
            content = _content(self._path)
            if content != self._content:
                self._all, self._content = _decoded(self._path, content), content
        except UsageError as error:
            problem = f"{error} The keys read before stay in force."
        if problem and problem != self._problem:
            _log().warning("keys not read", why=problem)
        self._problem = problem
        before, self._in_force = self._in_force, self._unexpired()
        if before != self._in_force:
            self._changes += 1
            names = before.keys() | self._in_force.keys()
            changed = [name for name in names if before.get(name) != self._in_force.get(name)]
            _log().info("keys changed", keys=sorted(changed))
        return self._changes

    def _unexpired(self) -> dict[str, Key]:
        now = self._clock()
        return {key.name: key for key in self._all if not key.expired(now)}


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file. Raises `UsageError`."""
    return _decoded(path, _content(path))


def add_key(path: Path, name: str, *, expires: datetime | None = None, **limits: float) -> str:
    """Add a key with `limits`, fields of `Key`. Returns its secret, which is not kept.

    Raises `UsageError`.
    """
    if expires is not None and expires <= datetime.now(UTC):
        raise UsageError(f"The key would have expired already, at {expires:%Y-%m-%d %H:%M} UTC.")
    secret = PREFIX + secrets.token_urlsafe(32)
    created = time.strftime("%Y-%m-%d", time.gmtime())
    fields = {"name": name, "sha256": _hash(secret), "created": created, "expires": expires}
    try:
        key = msgspec.convert({**fields, **limits}, Key)
    except msgspec.ValidationError as error:
        raise UsageError(f"The key {name!r} or its limits cannot be so: {error}.") from error
    with _changing(path) as path:
        keys = read_keys(path) if path.exists() else ()
        if any(known.name == name for known in keys):
            raise UsageError(
                f"There is a key {name!r} already", hint="revoke it or choose another name"
            )
        _write(path, (*keys, key))
    return secret


def revoke_key(path: Path, name: str) -> None:
    """Remove a key. Raises `UsageError` if there is none of this name."""
    missing = UsageError(f"There is no key {name!r} in {str(path)!r}.")
    if not path.exists():
        raise missing
    with _changing(path) as path:
        keys = read_keys(path)
        left = tuple(key for key in keys if key.name != name)
        if len(left) == len(keys):
            raise missing
        _write(path, left)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _content(path: Path) -> bytes:
    """Raises `UsageError`."""
    try:
        # A pipe or a device would be read for ever.
        if not path.is_file():
            raise UsageError(f"There is no file of keys at {str(path)!r}.")
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"The keys in {str(path)!r} cannot be read: {error.strerror}.") from error
    if len(content) > MAX_FILE:
        raise UsageError(f"{str(path)!r} is larger than {MAX_FILE} bytes: not a file of keys.")
    return content


def _decoded(path: Path, content: bytes) -> tuple[Key, ...]:
    try:
        return msgspec.json.decode(content, type=_File).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} is not a file of keys: {error}.") from error


@contextmanager
def _changing(path: Path) -> Generator[Path]:
    """Commands that change a file take turns. Yields what a link leads to. Raises `UsageError`."""
    import fcntl

    path = path.resolve()
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:
        raise UsageError(f"{str(lock)!r} cannot be written: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(descriptor)


def _write(path: Path, keys: tuple[Key, ...]) -> None:
    """Replace the file as a whole. A new one is its owner's alone; others keep owner and mode."""
    partial = path.with_name(path.name + ".partial")
    try:
        before = path.stat() if path.exists() else None
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            if before is not None:
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), before.st_mode & 0o660)
            content = msgspec.json.encode(_File(1, keys))
            file.write(msgspec.json.format(content, indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def _log() -> Any:
    # The commands that edit the file do without an extra.
    import structlog

    return structlog.get_logger("edgewise.keys")
