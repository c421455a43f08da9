"""Files about what leaves: counts, which are kept unless told otherwise, and payloads, on demand.

Counts say when how much went where, and hold no text. They lie in the user's folder of state, for
their owner only, and never grow past two files of `MAX_COUNTS` bytes.
"""

import base64
import errno
import logging
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edgewise.errors import CloudUnavailable, UsageError

MAX_COUNTS = 1 << 20
"""Bytes after which the file of counts becomes the old one, and a new one begins."""

_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Name = Annotated[str, Meta(max_length=16)]

_NO_FILE = "it is a link, a pipe or a device, not a file"

_log = logging.getLogger(__name__)


class SentMessage(msgspec.Struct, kw_only=True):
    """A consult, or ids pushed ahead of one, with all the messages it took: their bodies alone.

    `at` is when it began, in seconds since 1970; `number` counts those of an answer. `tokens` ids
    travelled, again each time they did. `new_tokens` of the conversation, `new_characters` of
    text, were not known to the host before. Where text travels there are no ids.
    """

    at: Annotated[float, Meta(ge=0, lt=1e11)]
    conversation: _Name
    answer: _Name
    number: _Count
    kind: Literal["consult", "push"]
    host: Annotated[str, Meta(max_length=300)]
    bytes: _Count = 0
    tokens: _Count = 0
    new_tokens: _Count = 0
    new_characters: _Count = 0


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it left: `body` where it is JSON, else its bytes in `base64`.

    `text` is what the ids in it stand for.
    """

    at: float
    conversation: str
    answer: str
    number: int
    kind: str
    host: str
    bytes: int
    tokens: int
    text: str
    body: str | None = None
    base64: str | None = None


class CountsFile:
    """A line of JSON a message; the last ones of all processes of a user."""

    def __init__(self, path: Path, *, most: int = MAX_COUNTS) -> None:
        self.path, self._most = path, most
        self._warned = False

    def append(self, messages: Sequence[SentMessage]) -> None:
        """Keep the counts of these; where that fails it is logged, once, and answers go on."""
        lines = b"".join(msgspec.json.encode(message) + b"\n" for message in messages)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._size() + len(lines) > self._most:
                self.path.replace(self._old)
            # In one piece, so that lines of several processes stay whole.
            _append(self.path, lines)
        except OSError as error:
            if not self._warned:
                _log.warning("what leaves is not kept in %r: %s", str(self.path), error.strerror)
            self._warned = True

    def read(self) -> tuple[list[SentMessage], int]:
        """What is kept, the oldest first, and how many lines are none. Raises `UsageError`."""
        lines = [line for path in (self._old, self.path) for line in self._lines(path)]
        found: list[SentMessage] = []
        for line in lines:
            try:
                found.append(msgspec.json.decode(line, type=SentMessage))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # counted below
        return found, len(lines) - len(found)

    @property
    def _old(self) -> Path:
        return self.path.with_name(f"{self.path.name}.1")

    def _size(self) -> int:
        return self.path.lstat().st_size if self.path.exists() else 0

    def _lines(self, path: Path) -> list[bytes]:
        try:
            with open(_opened(path, os.O_RDONLY), "rb") as file:
                return file.read(2 * self._most).splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}.") from error


class PayloadsFile:
    """Every message exactly as it leaves, written before it does; one that cannot be, does not."""

    def __init__(self, path: Path) -> None:
        """Goes on where `path` exists already. Raises `UsageError` where it cannot be written."""
        self._path = path
        try:
            _append(path, b"")
        except OSError as error:
            raise UsageError(
                f"The file {str(path)!r} for what is sent cannot be written: {error.strerror}."
            ) from error

    def write(self, about: SentMessage, message: bytes, tokens: int, text: str) -> None:
        """One message, whose ids stand for `text`. Raises `CloudUnavailable`: do not send it."""
        json = message[:1] == b"{"
        payload = Payload(
            at=about.at,
            conversation=about.conversation,
            answer=about.answer,
            number=about.number,
            kind=about.kind,
            host=about.host,
            bytes=len(message),
            tokens=tokens,
            text=text,
            body=message.decode() if json else None,
            base64=None if json else base64.b64encode(message).decode(),
        )
        try:
            _append(self._path, msgspec.json.encode(payload) + b"\n")
        except OSError as error:
            raise CloudUnavailable(
                f"Nothing is sent, since {str(self._path)!r} cannot be written ({error.strerror})",
                hint="make room, or leave that file out",
            ) from error


def counts_place() -> Path | None:
    """Where counts are kept; None for a user without a home."""
    try:
        return _state() / "edgewise" / "sent.jsonl"
    except RuntimeError:
        return None


def _state() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    # By its specification a relative one is none.
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".local" / "state"


def _append(path: Path, lines: bytes) -> None:
    """To the end of a file that only its owner may read from then on; raises `OSError`."""
    descriptor = _opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        if hasattr(os, "fchmod") and stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
        while lines:
            lines = lines[os.write(descriptor, lines) :]
    finally:
        os.close(descriptor)


def _opened(path: Path, flags: int) -> int:
    """A descriptor of a file of its own: no link, which may lead anywhere, and no pipe or device.

    Raises `OSError`.
    """
    # A pipe would be waited for; Windows has neither flag.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise OSError(error.errno, _NO_FILE) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NO_FILE)
    return descriptor
