"""API keys of a gateway or a server, in a JSON file with the hash, name and limits of each.

A running server reads the file again and again: a revoked key stops working within a second. If the
file becomes unreadable, the keys read last stay in force until they expire.
"""

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from edgewise.errors import UsageError
from edgewise.settings import file_bytes

PREFIX = "ew-"
"""Beginning of every key."""

CHECK_SECONDS = 0.4
"""Seconds after which the key file is read again."""

# Tens of thousands of keys: the file is read whole, again at each change.
MAX_FILE = 16 << 20
MAX_NAME = 64
"""Most bytes of a key file, and most characters of a key's name."""

MOST = 10**15
"""Largest value of any limit; more would be a mistake."""

_Limit = msgspec.Meta(ge=0, le=MOST)


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key: its `name`, the SHA-256 of its secret in hex, and its limits (0: no limit).

    At a gateway `consults_per_second` limits requests to the cloud model, `ids_per_second` the
    token ids received from clients or computed for them, and `sessions` the conversations of
    devices that are connected at once. At a server the same three limit requests, the token ids of
    prompts and answers, and the answers that wait or are being written. `tokens_per_day` bounds the
    tokens that the cloud model writes in a day of UTC; only a gateway accepts a key with this
    limit. `created` is a day as text (2026-01-31). The key is invalid from the time `expires` on.
    """

    name: str
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: str
    consults_per_second: Annotated[float, _Limit] = 50.0
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
        """Whether the key is no longer valid at `now`, a time with a time zone."""
        return self.expires is not None and now >= self.expires


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a key file."""

    format: Literal[1]
    keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        if len({key.name for key in self.keys}) < len(self.keys):
            raise ValueError("two keys have the same name")


ANYBODY = Key(
    name="anybody", sha256="", created="", consults_per_second=0.0, ids_per_second=0.0, sessions=0
)
"""Stands for every client where there is no key file; it has no limits."""


class Keys:
    """The keys of a key file that are in force: neither removed from the file nor expired.

    `find`, `current` and `refresh` read the file again if `CHECK_SECONDS` have passed since the
    last time. If it cannot be read then, the keys read before stay in force.
    """

    def __init__(
        self, path: Path | None, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Read the key file at `path`; None lets everybody in, as `ANYBODY`.

        `clock` returns the present time. Raises `UsageError` if the file cannot be read.
        """
        self._path, self._clock = path, clock
        self._all: tuple[Key, ...] = ()
        self._content: bytes | None = None
        self._problem = ""
        self._changes = 0
        if path is not None:
            self._read(path)
        self._read_at = time.monotonic()
        # By their hashes.
        self._in_force = self._unexpired()

    @property
    def required(self) -> bool:
        """Whether clients need a key; otherwise all of them share the key `ANYBODY`."""
        return self._path is not None

    def find(self, secret: str) -> Key | None:
        """Return the valid key with this `secret`, or None; without a key file always `ANYBODY`."""
        if self._path is None:
            return ANYBODY
        self.refresh()
        shown, found = _hash(secret), None
        # All of them, each in constant time: how long it takes tells nothing of a key.
        for key in self._in_force.values():
            if hmac.compare_digest(key.sha256, shown):
                found = key
        return found

    def current(self, key: Key) -> Key | None:
        """Return `key` with its present limits, or None if it was revoked or has expired."""
        if self._path is None:
            return key
        self.refresh()
        return self._in_force.get(key.sha256)

    def refresh(self) -> int:
        """Read the file again if it is time; return how often the keys in force changed so far."""
        if self._path is None or time.monotonic() - self._read_at < CHECK_SECONDS:
            return self._changes
        self._read_at = time.monotonic()
        problem = ""
        try:
            self._read(self._path)
        except UsageError as error:
            # A mistake with a file must not lock everybody out.
            problem = f"{error} The keys read before stay in force."
        if problem and problem != self._problem:
            _log().warning("keys not read", why=problem)
        self._problem = problem
        before, self._in_force = self._in_force, self._unexpired()
        if before != self._in_force:
            self._changes += 1
            changed = {key.name for _, key in before.items() ^ self._in_force.items()}
            _log().info("keys changed", keys=sorted(changed))
        return self._changes

    def _read(self, path: Path) -> None:
        """Read the file, and decode it if it has changed. Raises `UsageError`."""
        content = _content(path)
        if content != self._content:
            self._all, self._content = _decoded(path, content), content

    def _unexpired(self) -> dict[str, Key]:
        now = self._clock()
        return {key.sha256: key for key in self._all if not key.expired(now)}


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return a key file's keys, expired ones too. Raises `UsageError` if it cannot be read."""
    return _decoded(path, _content(path))


def add_key(path: Path, name: str, *, expires: datetime | None = None, **limits: float) -> str:
    """Add a key to the key file at `path`, created if missing; return its secret, stored nowhere.

    `limits` are fields of `Key`, such as `tokens_per_day`. Raises `UsageError` for an invalid name
    or limit, a name that is taken, an `expires` in the past or a file that cannot be written.
    """
    if expires is not None and expires <= datetime.now(UTC):
        raise UsageError(f"The key would already have expired at {expires:%Y-%m-%d %H:%M} UTC.")
    secret = PREFIX + secrets.token_urlsafe(32)
    created = time.strftime("%Y-%m-%d", time.gmtime())
    fields = {"name": name, "sha256": _hash(secret), "created": created, "expires": expires}
    try:
        key = msgspec.convert({**fields, **limits}, Key)
    except msgspec.ValidationError as error:
        raise UsageError(f"Invalid key name or limits for {name!r}: {error}.") from error

    def added(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        if any(known.name == name for known in keys):
            raise UsageError(
                f"There is a key {name!r} already", hint="revoke it or choose another name"
            )
        return (*keys, key)

    _change(path, added)
    return secret


def revoke_key(path: Path, name: str) -> None:
    """Remove the key `name` from a key file. Raises `UsageError` if none has it, or on failure."""
    if all(key.name != name for key in read_keys(path)):
        raise UsageError(f"There is no key {name!r} in {str(path)!r}.")
    _change(path, lambda keys: tuple(key for key in keys if key.name != name))


def _hash(secret: str) -> str:
    # A key is 32 random bytes, so a plain hash of it cannot be reversed.
    return hashlib.sha256(secret.encode()).hexdigest()


def _content(path: Path) -> bytes:
    """Return a key file's bytes. Raises `UsageError` if it is unreadable or too large."""
    return file_bytes(path, f"The key file {str(path)!r}", most=MAX_FILE)


def _decoded(path: Path, content: bytes) -> tuple[Key, ...]:
    try:
        return msgspec.json.decode(content, type=_File).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} is not a key file: {error}.") from error


def _change(path: Path, change: Callable[[tuple[Key, ...]], tuple[Key, ...]]) -> None:
    """Apply `change` to the keys in a file; replace the file under a lock. Raises `UsageError`."""
    import fcntl

    # Of a link the file is replaced, not the link.
    path = path.resolve()
    partial = path.with_name(path.name + ".partial")
    try:
        # A file of its own: a lock on the key file would go with it when that is replaced.
        with open(path.with_name(path.name + ".lock"), "ab", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = path.stat() if path.exists() else None
            keys = change(read_keys(path) if before else ())
            partial.unlink(missing_ok=True)
            with open(partial, "xb", opener=_private) as file:
                if before is not None:
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                    os.fchmod(file.fileno(), before.st_mode & 0o660)
                content = msgspec.json.encode(_File(1, keys))
                file.write(msgspec.json.format(content, indent=2) + b"\n")
                file.flush()
                # Before it takes the old one's place, or a power failure could leave neither.
                os.fsync(file.fileno())
            os.replace(partial, path)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _log() -> Any:
    # The commands that edit the file do without an extra.
    import structlog

    return structlog.get_logger("edgewise.keys")
