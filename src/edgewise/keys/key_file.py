"""A file of keys: JSON with a hash, a name and limits each; an audit file beside it.

A key is 32 random bytes, so a plain SHA-256 keeps it as safe as the key itself. The file is
replaced as a whole; it keeps its owner and mode, so that who could read it still can.
Changes take turns, so that two at once lose nothing, and each leaves a line in the audit file.
"""

import getpass
import hashlib
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from edgewise.errors import UsageError

MAX_FILE = 16 << 20
MAX_NAME = 64
MOST = 10**15
"""Of any limit; more would be a mistake."""

_Limit = msgspec.Meta(ge=0, le=MOST)
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Retired(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret that was rotated out, and until when it works still."""

    sha256: _Hash
    until: _Moment


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key and its limits (0: none).

    `asks_per_second` consults; `ids_per_second` token ids received or computed for it;
    `tokens_per_day` cloud tokens written, days of UTC; `sessions` open at once and `ids` held by
    all its sessions, at each gateway. At a server consults are requests, and sessions are answers
    that wait or are being written. Of a key that was found, `sha256` is the one that was shown.
    """

    name: str
    sha256: _Hash
    created: str
    asks_per_second: Annotated[float, _Limit] = 50.0
    ids_per_second: Annotated[float, _Limit] = 20_000.0
    tokens_per_day: Annotated[int, _Limit] = 0
    sessions: Annotated[int, _Limit] = 16
    ids: Annotated[int, _Limit] = 2_000_000
    expires: _Moment | None = None
    retired: tuple[Retired, ...] = ()

    def __post_init__(self) -> None:
        padded = self.name != self.name.strip()
        if not 0 < len(self.name) <= MAX_NAME or not self.name.isprintable() or padded:
            raise ValueError(
                f"a key's name has 1 to {MAX_NAME} printable characters and no space at its ends"
            )

    def expired(self, now: datetime) -> bool:
        """Whether its time is over."""
        return self.expires is not None and now >= self.expires

    def hashes(self, now: datetime) -> list[str]:
        """Of the secrets that work at `now`."""
        if self.expired(now):
            return []
        return [self.sha256, *(old.sha256 for old in self.retired if now < old.until)]


_Keys = tuple[Key, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What lies in a file of keys."""

    format: Literal[1]
    keys: _Keys

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
"""Who comes where there are no keys."""


class FileStamp(NamedTuple):
    """What tells one state of a file from another, without reading it."""

    device: int
    inode: int
    changed: int
    size: int
    links: int


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file. Raises `UsageError`."""
    return decoded(path, content_of(path))


def hash_of(secret: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()


def stamp_of(path: Path) -> FileStamp:
    """Raises `UsageError`."""
    try:
        stat = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    changed = max(stat.st_mtime_ns, stat.st_ctime_ns)
    return FileStamp(stat.st_dev, stat.st_ino, changed, stat.st_size, stat.st_nlink)


def content_of(path: Path) -> bytes:
    """Raises `UsageError`."""
    try:
        # A pipe or a device would be read for ever.
        if not path.is_file() and path.exists():
            raise UsageError(f"{str(path)!r} is no file of keys: it is no file.")
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(content) > MAX_FILE:
        raise UsageError(f"{str(path)!r} is larger than {MAX_FILE} bytes: no file of keys.")
    return content


def _unreadable(path: Path, error: OSError) -> UsageError:
    hint = None
    if isinstance(error, FileNotFoundError):
        return UsageError(f"There is no file of keys {str(path)!r}.")
    if isinstance(error, PermissionError):
        hint = "it is for its owner's eyes only: run this as the user whose file it is"
    return UsageError(f"The keys in {str(path)!r} cannot be read: {error.strerror}", hint=hint)


def decoded(path: Path, content: bytes) -> _Keys:
    """The keys in a file's content. Raises `UsageError`."""
    try:
        return msgspec.json.decode(content, type=_File).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} is no file of keys: {error}.") from error


def audit_file(keys: Path) -> Path:
    """Where the changes of a file of keys are written down."""
    return keys.with_name(keys.name + ".audit")


def change(
    path: Path, event: str, name: str, edit: Callable[[_Keys], _Keys], details: dict[str, Any]
) -> None:
    """Read, edit, write, with a line in the audit file; no change without the line."""
    # A link is followed, so that what it leads to is replaced and not the link.
    path = path.resolve()
    with _audit(path) as descriptor:
        keys = edit(read_keys(path) if path.exists() else ())
        told = {"time": datetime.now(UTC), "event": event, "key": name, "by": _who(), **details}
        before = os.fstat(descriptor).st_size
        try:
            _write_line(path, descriptor, msgspec.json.encode(told) + b"\n")
            _write(path, keys)
        except UsageError:
            # A line tells of what was done.
            with suppress(OSError):
                os.ftruncate(descriptor, before)
            raise


@contextmanager
def _audit(path: Path) -> Generator[int]:
    """The audit file, locked; raises `UsageError`."""
    import fcntl

    audit = audit_file(path)
    try:
        descriptor = os.open(audit, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise UsageError(f"{str(audit)!r} cannot be written: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _write_line(path: Path, descriptor: int, line: bytes) -> None:
    """Raises `UsageError`, where the disk is full for instance."""
    try:
        if os.write(descriptor, line) == len(line):
            return
        reason: str | None = "No space left on device"
    except OSError as error:
        reason = error.strerror
    raise UsageError(f"{str(audit_file(path))!r} cannot be written: {reason}.")


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # In a container a user may have no name.
        return str(os.getuid())


def _write(path: Path, keys: _Keys) -> None:
    """Whole or not at all, for the owner's eyes only unless the file was for more."""
    partial = path.with_name(path.name + ".partial")
    try:
        before = path.stat() if path.exists() else None
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            if before is not None:
                _like(file.fileno(), before)
            content = msgspec.json.encode(_File(1, keys))
            file.write(msgspec.json.format(content, indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def _like(descriptor: int, before: os.stat_result) -> None:
    """The owner and mode of the file that it replaces."""
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, before.st_mode & 0o660)
