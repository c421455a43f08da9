"""The record of what leaves: counts for each answer, and on demand every message.

A session adds each message to a `Sent` before it leaves. Those of an answer come from its
`SentAnswer`, so nothing of a conversation travels that the record does not know. Counts hold no
text. They lie in the user's folder of state, and never grow past two files of `MAX_COUNTS` bytes.
"""

import base64
import errno
import hashlib
import itertools
import logging
import os
import secrets
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from edgewise.completion import Sent
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import CloudUnavailable, UsageError
from edgewise.events import SentCounts
from edgewise.prompts import Prompt

if sys.platform != "win32":
    import fcntl

KEPT_ANSWERS = 100
"""The last answers that the record shows."""

MAX_COUNTS = 1 << 20
"""Bytes after which the file of counts becomes the old one, and a new one begins."""

_PREFETCH_SECONDS = 0.05

_STATE = {
    "win32": ("LOCALAPPDATA", "AppData/Local"),
    "darwin": ("", "Library/Application Support"),
}
"""A variable that names the user's folder of state, and where it is in the home without."""

_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Name = Annotated[str, Meta(max_length=16)]

_NO_FILE = "it is not a file of this user's, but a link, a pipe, a device or another user's"

_log = logging.getLogger(__name__)


class AnswerSent(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer sent to `host`: counts of messages' bodies, of `consults` and of `prefetches`.

    `at` is when it began, in seconds since 1970. `tokens` ids travelled, again each time they did;
    where text travels there are none. In a file a line may hold what left after the answer's end.
    """

    at: Annotated[float, Meta(ge=0, lt=1e11)]
    conversation: _Name
    answer: _Name
    host: Annotated[str, Meta(max_length=300)]
    consults: _Count = 0
    prefetches: _Count = 0
    bytes: _Count = 0
    tokens: _Count = 0

    def plus(self, more: "AnswerSent") -> "AnswerSent":
        """The same answer with the counts of both."""
        return replace(
            self,
            consults=self.consults + more.consults,
            prefetches=self.prefetches + more.prefetches,
            bytes=self.bytes + more.bytes,
            tokens=self.tokens + more.tokens,
        )


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


class SentRecord:
    """What the answers of a decoder or a server sent; any thread may call."""

    def __init__(
        self, counts: "CountsFile | None" = None, payloads: "PayloadsFile | None" = None
    ) -> None:
        """`counts` are kept in a file, and `payloads` written to one."""
        self.lock = threading.Lock()
        self.counts_file, self.payloads = counts, payloads
        self._answers: deque[SentAnswer] = deque(maxlen=KEPT_ANSWERS)
        self.forget()

    def answer(self, prompt: Prompt, cloud: str, tokenizer: Tokenizer) -> "SentAnswer":
        """A new answer's part; `cloud` is the cloud model's name, its address where it has one.

        `tokenizer` is that of the ids that are sent.
        """
        host = urlsplit(cloud).netloc or cloud if "://" in cloud else cloud
        made = SentAnswer(self, self.conversation(prompt), host, tokenizer)
        with self.lock:
            self._answers.append(made)
        return made

    def conversation(self, prompt: Prompt) -> str:
        """The name of the conversation that an answer to `prompt` belongs to.

        Conversations are told apart by their messages up to the first of the user's; a prompt of
        ids is a new one.
        """
        beginning = _beginning(prompt)
        if not beginning:
            return secrets.token_hex(4)
        return hashlib.blake2b(beginning, key=self._secret, digest_size=4).hexdigest()

    def forget(self) -> None:
        """What begins alike is another conversation from now on."""
        # Secret, so that nobody who sees a conversation's name can try texts on it.
        self._secret = secrets.token_bytes(32)

    def answers(self) -> list[AnswerSent]:
        """What the last answers sent, the oldest first; those that sent nothing are left out."""
        with self.lock:
            return [one.sums for one in self._answers if one.sums.bytes]


class SentAnswer:
    """What one answer sent; made by `SentRecord.answer`."""

    def __init__(
        self, record: SentRecord, conversation: str, host: str, tokenizer: Tokenizer
    ) -> None:
        self.conversation, self.host = conversation, host
        self.sums = AnswerSent(
            at=time.time(), conversation=conversation, answer=secrets.token_hex(4), host=host
        )
        self._record, self._tokenizer = record, tokenizer
        self._prefetches: list[Sent] = []
        self._numbers = itertools.count()
        self._closed = False

    def consult(self, ids: Sequence[int]) -> Sent:
        """For a consult after `ids`."""
        return self._sent("consult", ids)

    def prefetch(self, ids: Sequence[int]) -> Sent:
        """For a prefetch of `ids`."""
        made = self._sent("prefetch", ids)
        self._prefetches = [
            one for one in self._prefetches if one.under_way and not one.under_way.done()
        ]
        self._prefetches.append(made)
        return made

    def counts(self) -> SentCounts:
        """All that has travelled, once prefetches under way have left or take too long."""
        flying = [sent.under_way for sent in self._prefetches if sent.under_way is not None]
        if flying:
            futures.wait(flying, _PREFETCH_SECONDS)
        return counts_of([self.sums])

    def close(self) -> None:
        """The answer is over: its counts are kept. What leaves after all is kept when it does."""
        with self._record.lock:
            if not self._closed and self.sums.bytes:
                self._keep(self.sums)
            self._closed = True

    def _sent(self, kind: Literal["consult", "prefetch"], ids: Sequence[int]) -> Sent:
        return Sent(ids, partial(self._leaves, kind, next(self._numbers)))

    def _leaves(self, kind: str, number: int, sent: Sent, ids: int, message: bytes) -> None:
        """A message leaves now, in whichever thread. Raises a `CloudError` where it may not."""
        record = self._record
        with record.lock:
            if record.payloads is not None:
                record.payloads.write(self._payload(kind, number, sent, ids, message))
            first = sent.bytes == 0
            more = replace(
                self.sums,
                consults=int(first and kind == "consult"),
                prefetches=int(first and kind == "prefetch"),
                bytes=len(message),
                tokens=ids,
            )
            self.sums = self.sums.plus(more)
            if self._closed:
                self._keep(more)

    def _payload(self, kind: str, number: int, sent: Sent, ids: int, message: bytes) -> Payload:
        json = message[:1] == b"{"
        prefix = sent.prefix[len(sent.prefix) - ids :]
        return Payload(
            at=time.time(),
            conversation=self.conversation,
            answer=self.sums.answer,
            number=number,
            kind=kind,
            host=self.host,
            bytes=len(message),
            tokens=ids,
            text=bytes_of(self._tokenizer, prefix).decode("utf-8", "replace"),
            body=message.decode() if json else None,
            base64=None if json else base64.b64encode(message).decode(),
        )

    def _keep(self, sums: AnswerSent) -> None:
        if self._record.counts_file is not None:
            self._record.counts_file.append(sums)


def counts_of(answers: Sequence[AnswerSent]) -> SentCounts:
    """What answers sent in all; the host is that of the last one."""
    return SentCounts(
        host=answers[-1].host if answers and answers[-1].bytes else None,
        consults=sum(one.consults for one in answers),
        prefetches=sum(one.prefetches for one in answers),
        bytes=sum(one.bytes for one in answers),
        tokens=sum(one.tokens for one in answers),
    )


def _beginning(prompt: Prompt) -> bytes:
    """Of a conversation, up to its first user message; empty where there is none."""
    messages = prompt.messages or ()
    users = [at for at, one in enumerate(messages) if one.role == "user"]
    if not users:
        return b""
    turns = [(one.role, one.content) for one in messages[: users[0] + 1]]
    return msgspec.json.encode((prompt.owner, turns))


class CountsFile:
    """A line of JSON an answer; the last ones of all processes of a user."""

    def __init__(self, path: Path, *, most: int = MAX_COUNTS) -> None:
        self.path, self._most = path, most
        self._warned = False

    def append(self, sent: AnswerSent) -> None:
        """Keep these counts; where that fails it is logged, once, and answers go on."""
        line = msgspec.json.encode(sent) + b"\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.exists() and self.path.lstat().st_size + len(line) > self._most:
                self.path.replace(self._old)
            # In one piece, so that lines of several processes stay whole.
            _append(self.path, line)
        except OSError as error:
            if not self._warned:
                _log.warning("what leaves is not kept in %r: %s", str(self.path), error.strerror)
            self._warned = True

    def read(self) -> tuple[list[AnswerSent], int]:
        """The answers kept, the oldest first; how many lines are broken. Raises `UsageError`."""
        answers: dict[str, AnswerSent] = {}
        broken = 0
        for line in (*self._lines(self._old), *self._lines(self.path)):
            try:
                more = msgspec.json.decode(line, type=AnswerSent)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                broken += 1
                continue
            known = answers.get(more.answer)
            answers[more.answer] = known.plus(more) if known else more
        return list(answers.values()), broken

    @property
    def _old(self) -> Path:
        return self.path.with_name(f"{self.path.name}.1")

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

    def write(self, payload: Payload) -> None:
        """One message that leaves. Raises `CloudUnavailable`: do not send it."""
        try:
            _append(self._path, msgspec.json.encode(payload) + b"\n")
        except OSError as error:
            raise CloudUnavailable(
                f"Nothing is sent, since {str(self._path)!r} cannot be written ({error.strerror})",
                hint="make room, or leave that file out",
            ) from error


def counts_place() -> Path | None:
    """Where counts are kept; None for a user without a home."""
    variable, folder = _STATE.get(sys.platform, ("XDG_STATE_HOME", ".local/state"))
    # By the specification a relative one is ignored.
    given = Path(os.environ.get(variable, ""))
    try:
        state = given if given.is_absolute() else Path.home() / folder
    except RuntimeError:
        return None
    return state / "edgewise" / "sent.jsonl"


def _append(path: Path, lines: bytes) -> None:
    """To the end of a file that only its owner may read from then on; raises `OSError`."""
    descriptor = private_file(path, os.O_RDWR | os.O_APPEND)
    try:
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if lines and os.lseek(descriptor, 0, os.SEEK_END):
            os.lseek(descriptor, -1, os.SEEK_END)
            if os.read(descriptor, 1) != b"\n":
                # The last writer was cut off: its half line must not swallow this one.
                lines = b"\n" + lines
        while lines:
            lines = lines[os.write(descriptor, lines) :]
    finally:
        os.close(descriptor)


def private_file(path: Path, flags: int) -> int:
    """A descriptor of a file of this user's, made where it is missing, that nobody else may read.

    Raises `OSError` for another user's, and for a link, which may lead anywhere, a pipe or a
    device.
    """
    descriptor = _opened(path, flags | os.O_CREAT)
    if hasattr(os, "fchmod"):
        try:
            os.fchmod(descriptor, 0o600)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def _opened(path: Path, flags: int) -> int:
    # A pipe would be waited for; Windows has neither flag.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise OSError(error.errno, _NO_FILE) from error
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode) and about.st_uid == getattr(os, "geteuid", lambda: 0)():
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, _NO_FILE)
