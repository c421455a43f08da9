"""Keys of a gateway or a server: a JSON file with the hash, the name and the limits of each.

A key is 32 random bytes, so a plain SHA-256 keeps it as safe as the key itself. A running server
reads the file again when it changes: a revoked key stops working within a second. If the file
becomes unreadable, the keys read last stay in force until they expire: a mistake with a file must
not lock everybody out.
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
"""Time between two looks at the file."""

SETTLED_SECONDS = 5.0
"""A file that changed less long ago is read at every look: its time may be too coarse to tell."""

MAX_FILE = 16 << 20
MAX_NAME = 64
MOST = 10**15
"""Of any limit; more would be a mistake."""

_Limit = msgspec.Meta(ge=0, le=MOST)


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key and its limits (0: no limit).

    `asks_per_second` consults; `ids_per_second` token ids received or computed for it;
    `tokens_per_day` cloud tokens written, days of UTC; `sessions` open at once and `ids` held by
    all its sessions, at each gateway. At a server consults are requests, and sessions are answers
    that wait or are being written.
    """

    name: str
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: str
    asks_per_second: Annotated[float, _Limit] = 50.0
    ids_per_second: Annotated[float, _Limit] = 20_000.0
    tokens_per_day: Annotated[int, _Limit] = 0
    sessions: Annotated[int, _Limit] = 16
    ids: Annotated[int, _Limit] = 2_000_000
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    retired: tuple[()] = ()
    """Earlier versions wrote it, empty unless the key had been rotated."""

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
    ids=0,
)
"""The key of everybody, where there is no file of keys."""


class Keys:
    """The keys of a file, looked up by their secrets. Logs every change, by name."""

    def __init__(
        self, path: Path | None, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Without a path everybody is let in, as one key without limits. Raises `UsageError`."""
        self._path, self._clock = path, clock
        self._keys: dict[str, Key] = {}
        self._expired: frozenset[str] = frozenset()
        self._stamp: tuple[int, ...] = ()
        self._content = b""
        self._settled = False
        self._problem = ""
        self._checked = time.monotonic()
        self.changes = 0
        if path is not None:
            self._stamp, self._content = _stamp(path), _content(path)
            self._keys = {key.name: key for key in _decoded(path, self._content)}
            self._expired = self._out_of_force()

    def refreshed(self) -> int:
        """Look at the file if that is due. Returns a number that grows with every change.

        A key that expires is a change as well.
        """
        if self._path is not None:
            self._refresh(self._path)
        return self.changes

    @property
    def required(self) -> bool:
        """Whether a device must show a key; otherwise all devices are one tenant."""
        return self._path is not None

    def find(self, secret: str) -> Key | None:
        """The key of a secret, in constant time; None if it is not in force."""
        if self._path is None:
            return ANYBODY
        self._refresh(self._path)
        shown, now, found = _hash(secret), self._clock(), None
        for key in self._keys.values():
            if hmac.compare_digest(key.sha256, shown) and not key.expired(now):
                found = key
        return found

    def find_named(self, key: Key) -> Key | None:
        """The key as it is now; None if it is not in force any more."""
        if self._path is None:
            return key
        self._refresh(self._path)
        known = self._keys.get(key.name)
        if known is None or known.sha256 != key.sha256 or known.expired(self._clock()):
            return None
        return known

    def _refresh(self, path: Path) -> None:
        if time.monotonic() - self._checked < CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        problem = ""
        try:
            self._look(path)
        except UsageError as error:
            problem = f"{error} The keys read before stay in force."
        if problem and problem != self._problem:
            _log().warning("keys not read", why=problem)
        self._problem = problem
        expired = self._out_of_force()
        for name in sorted(expired - self._expired):
            _log().info("key expired", key=name)
        self.changes += expired != self._expired
        self._expired = expired

    def _look(self, path: Path) -> None:
        stamp = _stamp(path)
        if not stamp[-1]:
            raise UsageError(
                f"{str(path)!r} was replaced outside of this container, which sees the old file",
                hint="mount its folder instead of the file",
            )
        if stamp == self._stamp and self._settled:
            return
        content = _content(path)
        if content != self._content:
            keys = {key.name: key for key in _decoded(path, content)}
            _log_difference(self._keys, keys)
            self._keys, self._content = keys, content
            self._expired = self._out_of_force()
            self.changes += 1
        self._stamp = stamp
        self._settled = abs(time.time() - max(stamp[2:4]) / 1e9) > SETTLED_SECONDS

    def _out_of_force(self) -> frozenset[str]:
        now = self._clock()
        return frozenset(name for name, key in self._keys.items() if key.expired(now))


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file. Raises `UsageError`."""
    return _decoded(path, _content(path))


def add_key(
    path: Path,
    name: str,
    *,
    asks_per_second: float,
    tokens_per_day: int,
    sessions: int,
    ids_per_second: float = 20_000.0,
    ids: int = 2_000_000,
    expires: datetime | None = None,
) -> str:
    """Add a key. Returns its secret, which is not kept. Raises `UsageError`."""
    limits = (asks_per_second, ids_per_second, tokens_per_day, sessions, ids)
    if not all(0 <= limit <= MOST for limit in limits):
        raise UsageError("A key's limits are numbers of 0 (no limit) or more, 10^15 at most.")
    if expires is not None and expires <= datetime.now(UTC):
        raise UsageError(f"The key would have expired already, at {expires:%Y-%m-%d %H:%M} UTC.")
    secret = PREFIX + secrets.token_urlsafe(32)
    try:
        key = Key(
            name=name,
            sha256=_hash(secret),
            created=time.strftime("%Y-%m-%d", time.gmtime()),
            asks_per_second=asks_per_second,
            ids_per_second=ids_per_second,
            tokens_per_day=tokens_per_day,
            sessions=sessions,
            ids=ids,
            expires=expires,
        )
    except ValueError as error:
        raise UsageError(f"{name!r} cannot name a key: {error}.") from error
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


def _stamp(path: Path) -> tuple[int, ...]:
    """Device, inode, times (ns), size and links of a file. Raises `UsageError`."""
    try:
        stat = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    times = (stat.st_mtime_ns, stat.st_ctime_ns)
    return (stat.st_dev, stat.st_ino, *times, stat.st_size, stat.st_nlink)


def _content(path: Path) -> bytes:
    """Raises `UsageError`."""
    try:
        # A pipe or a device would be read for ever.
        if not path.is_file() and path.exists():
            raise UsageError(f"{str(path)!r} is not a file of keys: it is not a file.")
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(content) > MAX_FILE:
        raise UsageError(f"{str(path)!r} is larger than {MAX_FILE} bytes: not a file of keys.")
    return content


def _unreadable(path: Path, error: OSError) -> UsageError:
    hint = None
    if isinstance(error, FileNotFoundError):
        return UsageError(f"There is no file of keys {str(path)!r}.")
    if isinstance(error, PermissionError):
        hint = "only its owner may read it: run this as the user that owns the file"
    return UsageError(f"The keys in {str(path)!r} cannot be read: {error.strerror}", hint=hint)


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
                now = os.fstat(file.fileno())
                if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), before.st_mode & 0o660)
            content = msgspec.json.encode(_File(1, keys))
            file.write(msgspec.json.format(content, indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def _log_difference(old: dict[str, Key], new: dict[str, Key]) -> None:
    """A line for each key that is new, gone or changed: names only."""
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            _log().info("key revoked", key=name)
        elif name not in old:
            _log().info("key added", key=name)
        elif old[name] != new[name]:
            _log().info("key changed", key=name)


def _log() -> Any:
    # The commands that edit the file do without an extra.
    import structlog

    return structlog.get_logger("edgewise.keys")
