"""The keys of a gateway or a server: looked up while it runs, added, rotated and revoked.

The file is read again when it changes, whoever changes it and however: a key that was revoked stops
working within a second. Where the file cannot be read any more, or is gone, the keys read last stay
in force, each until it expires: a mistake with a file must not lock everybody out.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from edgewise.errors import UsageError
from edgewise.keys.key_file import (
    ANYBODY,
    MOST,
    FileStamp,
    Key,
    Retired,
    change,
    content_of,
    decoded,
    hash_of,
    stamp_of,
)

PREFIX = "ew-"

CHECK_SECONDS = 0.4
"""Between two looks at the file."""

SETTLED_SECONDS = 5.0
"""A file that changed less long ago is read at every look: its time may be too coarse to tell."""

_NEVER = datetime.max.replace(tzinfo=UTC)

_Keys = tuple[Key, ...]


class Keys:
    """The keys of a file, looked up by what a device shows. Logs each change, by name."""

    def __init__(
        self, path: Path | None, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Without a path everybody is let in, as one key without limits. Raises `UsageError`."""
        self._path, self._clock = path, clock
        self._keys: dict[str, Key] = {}
        self._stamp: FileStamp | None = None
        self._content = b""
        self._settled = False
        self._problem = ""
        self._moment = _NEVER
        self.changes = 0
        self._checked = time.monotonic()
        if path is not None:
            self._stamp, self._content = stamp_of(path), content_of(path)
            self._keys = {key.name: key for key in decoded(path, self._content)}
            self._moment = self._next_moment(self._clock())

    def refreshed(self) -> int:
        """Look at the file where that is due; a number that is another whenever anything changed.

        A key's time that ended is a change as well.
        """
        if self._path is not None:
            self._refresh()
        return self.changes

    @property
    def required(self) -> bool:
        """Whether a device must show one; where not, all are one tenant."""
        return self._path is not None

    def find(self, secret: str) -> Key | None:
        """The key, in constant time; None for one that is not, or no longer, there."""
        if self._path is None:
            return ANYBODY
        self._refresh()
        shown, now, found = hash_of(secret), self._clock(), None
        for key in self._keys.values():
            if _matches(key, shown, now):
                found = msgspec.structs.replace(key, sha256=shown)
        return found

    def find_named(self, key: Key) -> Key | None:
        """The key as it stands now; None where it, or the secret shown for it, is out of force."""
        if self._path is None:
            return key
        self._refresh()
        known = self._keys.get(key.name)
        if known is None or not _matches(known, key.sha256, self._clock()):
            return None
        return msgspec.structs.replace(known, sha256=key.sha256)

    def _refresh(self) -> None:
        if time.monotonic() - self._checked < CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        try:
            self._look()
            problem = ""
        except UsageError as error:
            problem = f"{error} The keys read before stay in force."
        if problem and problem != self._problem:
            _log_warning("keys not read", problem)
        self._problem = problem
        self._note_expiry(self._clock())

    def _note_expiry(self, now: datetime) -> None:
        if now < self._moment:
            return
        for key in self._keys.values():
            if key.expires is not None and self._moment <= key.expires <= now:
                _log_change("key expired", key.name)
            if any(self._moment <= old.until <= now for old in key.retired):
                _log_change("old secret expired", key.name)
        self._moment = self._next_moment(now)
        self.changes += 1

    def _look(self) -> None:
        assert self._path is not None
        stamp = stamp_of(self._path)
        if stamp != self._stamp or not self._settled:
            content = content_of(self._path)
            if content != self._content:
                keys = {key.name: key for key in decoded(self._path, content)}
                _log_difference(self._keys, keys)
                self._keys, self._content = keys, content
                self._moment = self._next_moment(self._clock())
                self.changes += 1
            self._stamp = stamp
            self._settled = abs(time.time() - stamp.changed / 1e9) > SETTLED_SECONDS
        if not stamp.links:
            raise UsageError(
                f"{str(self._path)!r} was replaced where it comes from, and is mounted alone",
                hint="mount its folder, or changes stay unseen",
            )

    def _next_moment(self, now: datetime) -> datetime:
        """When the next key, or the next rotated secret, expires."""
        moments = [old.until for key in self._keys.values() for old in key.retired]
        moments += [key.expires for key in self._keys.values() if key.expires]
        return min((moment for moment in moments if moment > now), default=_NEVER)


def _matches(key: Key, shown: str, now: datetime) -> bool:
    """In constant time, whichever of its secrets it is."""
    return sum(hmac.compare_digest(known, shown) for known in key.hashes(now)) > 0


def _log_difference(old: dict[str, Key], new: dict[str, Key]) -> None:
    """A line for each key that is new, gone or other: names only."""
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            _log_change("key revoked", name)
        elif name not in old:
            _log_change("key added", name)
        elif old[name].sha256 != new[name].sha256:
            _log_change("key rotated", name)
        elif old[name] != new[name]:
            _log_change("key changed", name)


def _log_change(event: str, name: str) -> None:
    # The commands that edit the file do without an extra.
    import structlog

    structlog.get_logger("edgewise.keys").info(event, key=name)


def _log_warning(event: str, why: str) -> None:
    import structlog

    structlog.get_logger("edgewise.keys").warning(event, why=why)


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
    """Add a key; returns it, which nobody can do later. Raises `UsageError`."""
    limits = (asks_per_second, ids_per_second, tokens_per_day, sessions, ids)
    if not all(0 <= limit <= MOST for limit in limits):
        raise UsageError("A key's limits are numbers of 0 (none) or more, 10^15 at most.")
    if expires is not None and expires <= datetime.now(UTC):
        raise UsageError(f"The key would have expired already, at {expires:%Y-%m-%d %H:%M} UTC.")
    secret = PREFIX + secrets.token_urlsafe(32)
    try:
        key = Key(
            name=name,
            sha256=hash_of(secret),
            created=time.strftime("%Y-%m-%d", time.gmtime()),
            asks_per_second=asks_per_second,
            ids_per_second=ids_per_second,
            tokens_per_day=tokens_per_day,
            sessions=sessions,
            ids=ids,
            expires=expires,
        )
    except ValueError as error:
        raise UsageError(f"{name!r} is no name for a key: {error}.") from error

    def added(keys: _Keys) -> _Keys:
        if any(known.name == name for known in keys):
            raise UsageError(
                f"There is a key {name!r} already", hint="revoke it or choose another name"
            )
        return (*keys, key)

    shown = {"expires": expires} if expires else {}
    change(path, "add", name, added, shown)
    return secret


def rotate_key(path: Path, name: str, *, grace: timedelta) -> str:
    """Give a key another secret, and return it; the one before works for `grace` still.

    A secret rotated out before that keeps its own time. Raises `UsageError`.
    """
    secret, now = PREFIX + secrets.token_urlsafe(32), datetime.now(UTC)
    until = now + grace

    def rotated(keys: _Keys) -> _Keys:
        key = _named(path, keys, name)
        if key.expired(now):
            raise UsageError(f"The key {name!r} has expired", hint="revoke it and add another")
        retired = tuple(
            old for old in (*key.retired, Retired(key.sha256, until)) if now < old.until
        )
        new = msgspec.structs.replace(key, sha256=hash_of(secret), retired=retired)
        return tuple(new if known is key else known for known in keys)

    if not path.exists():
        raise _unknown(path, name)
    change(path, "rotate", name, rotated, {"old_until": until})
    return secret


def revoke_key(path: Path, name: str) -> None:
    """Remove a key; raises `UsageError` where there is none."""

    def revoked(keys: _Keys) -> _Keys:
        gone = _named(path, keys, name)
        return tuple(key for key in keys if key is not gone)

    if not path.exists():
        raise _unknown(path, name)
    change(path, "revoke", name, revoked, {})


def _named(path: Path, keys: _Keys, name: str) -> Key:
    found = next((key for key in keys if key.name == name), None)
    if found is None:
        raise _unknown(path, name)
    return found


def _unknown(path: Path, name: str) -> UsageError:
    return UsageError(f"There is no key {name!r} in {str(path)!r}.")
