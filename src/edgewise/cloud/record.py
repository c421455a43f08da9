"""The record of what is sent to cloud models: counts for each answer and, if wanted, each message.

A session adds each message to an `Outgoing` before it leaves. Every `Outgoing` of an answer is made
by its `SentAnswer`, so nothing is sent unrecorded. Counts hold no text and stay in memory.
"""

import errno
import hashlib
import itertools
import os
import secrets
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from edgewise.completion import Outgoing
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import CloudUnavailable, EdgeError, UsageError
from edgewise.events import SentCounts
from edgewise.prompts import Prompt

if sys.platform != "win32":
    import fcntl

KEPT_ANSWERS = 100
"""How many of the last answers the record keeps; one with two clouds counts twice."""

# A prefetch tells its bytes a moment after it was sent: a record that is read waits for that.
_PREFETCH_SECONDS = 0.05

_NO_FILE = "it is not a file of this user's, but a link, a pipe, a device or another user's"


class SentRecord:
    """Records what the answers of a `Decoder` or a server sent to cloud models. Thread-safe."""

    def __init__(self, payloads: "PayloadsFile | None" = None) -> None:
        """With `payloads`, every message is also written to that file before it is sent."""
        self.lock = threading.Lock()
        self.payloads = payloads
        self._answers: deque[SentAnswer] = deque(maxlen=KEPT_ANSWERS)
        self.forget()

    def answer(self, prompt: Prompt, cloud: str, tokenizer: Tokenizer) -> "SentAnswer":
        """Begin the record of a new answer to `prompt`, and return it.

        `cloud` is the cloud model's name, or its URL; `tokenizer` decodes the ids that are sent.
        """
        host = urlsplit(cloud).netloc or cloud if "://" in cloud else cloud
        made = SentAnswer(self, self.conversation(prompt), host, tokenizer)
        with self.lock:
            # Now, so that what it sends can be seen while it is written.
            self._answers.append(made)
        return made

    def conversation(self, prompt: Prompt) -> str:
        """Return a name (8 hex digits) for the conversation that `prompt` belongs to.

        Prompts with the same `owner` (an API key's name), and the same messages up to the user's
        first, are one conversation; a prompt without a user's message is a new one.
        """
        messages = prompt.messages or ()
        first = next((at for at, one in enumerate(messages) if one.role == "user"), None)
        if first is None:
            return secrets.token_hex(4)
        # Later turns change, and a client sends all of them with each request.
        turns = [(one.role, one.content) for one in messages[: first + 1]]
        beginning = msgspec.json.encode((prompt.owner, turns))
        return hashlib.blake2b(beginning, key=self._secret, digest_size=4).hexdigest()

    def edge(self, host: str, message: bytes) -> None:
        """Record a JSON message that is about to be sent to the edge model's server at `host`.

        It is written to the record's `PayloadsFile`; without one nothing is recorded. Raises
        `EdgeError` if it cannot be written: then the message must not be sent.
        """
        if self.payloads is None:
            return
        payload = {"kind": "edge", "host": host, "bytes": len(message), "body": message.decode()}
        try:
            with self.lock:
                self.payloads.write({"at": time.time(), **payload})
        except CloudUnavailable as error:
            raise EdgeError(str(error)) from error

    def forget(self) -> None:
        """Give conversations new names from now on, which cannot be linked to earlier records."""
        # Secret, so that nobody who sees a conversation's name can try texts on it.
        self._secret = secrets.token_bytes(32)

    def answers(self) -> "list[SentAnswer]":
        """Return which of the last 100 answers (`KEPT_ANSWERS`) sent something, oldest first."""
        with self.lock:
            return [one for one in self._answers if one.sums.bytes]


class SentAnswer:
    """The record of what one answer sent to a cloud model; made by `SentRecord.answer`.

    `at` is when the answer began, in seconds since 1970; `answer` and `conversation` name it and
    its conversation, in 8 hex digits each. `host` is where the cloud model is. `sums` counts
    consults and prefetches that sent something, the bytes of their messages, and the token ids in
    these: an id that is sent twice counts twice, and one sent as text does not count.
    """

    def __init__(
        self, record: SentRecord, conversation: str, host: str, tokenizer: Tokenizer
    ) -> None:
        self.at, self.conversation, self.host = time.time(), conversation, host
        self.answer = secrets.token_hex(4)
        self.sums = SentCounts()
        self._record, self._tokenizer = record, tokenizer
        self._prefetches = set[futures.Future[None]]()
        self._numbers = itertools.count()

    def consult(self, max_requests: int | None = None) -> Outgoing:
        """Return an `Outgoing` to record what one consult sends.

        Its `add` raises `CloudUnavailable` for more than `max_requests` billed messages, repeated
        ones included; None sets no limit.
        """
        return Outgoing(self._recorder("consult"), max_requests)

    def prefetch(self) -> Outgoing:
        """Return an `Outgoing` to record what a prefetch sends."""
        return Outgoing(self._recorder("prefetch"))

    def prefetching(self, under_way: futures.Future[None]) -> None:
        """Note the future of a prefetch under way, for `counts` to wait for."""
        self._prefetches.add(under_way)
        under_way.add_done_callback(self._prefetches.discard)

    def counts(self) -> SentCounts:
        """Return `sums`, after waiting a moment (0.05 s at most) for prefetches under way."""
        if flying := tuple(self._prefetches):
            futures.wait(flying, _PREFETCH_SECONDS)
        return self.sums

    def _recorder(self, kind: str) -> Callable[[Outgoing, Sequence[int], bytes], None]:
        return partial(self._on_send, kind, next(self._numbers))

    def _on_send(
        self, kind: str, number: int, sent: Outgoing, ids: Sequence[int], message: bytes
    ) -> None:
        """Record a message before it leaves; raise a `CloudError` if it must not. Any thread."""
        with self._record.lock:
            # First: what cannot be written does not leave, and is not counted.
            if self._record.payloads is not None:
                self._record.payloads.write(self._payload(kind, number, ids, message))
            sums, first = self.sums, sent.bytes == 0
            self.sums = replace(
                sums,
                host=self.host,
                consults=sums.consults + (first and kind == "consult"),
                prefetches=sums.prefetches + (first and kind == "prefetch"),
                bytes=sums.bytes + len(message),
                tokens=sums.tokens + len(ids),
            )

    def _payload(
        self, kind: str, number: int, ids: Sequence[int], message: bytes
    ) -> dict[str, object]:
        return {
            "at": time.time(),
            "conversation": self.conversation,
            "answer": self.answer,
            "number": number,
            "kind": kind,
            "host": self.host,
            "bytes": len(message),
            "tokens": len(ids),
            "text": bytes_of(self._tokenizer, ids).decode("utf-8", "replace"),
            # Bytes are encoded in base64.
            **({"body": message.decode()} if message[:1] == b"{" else {"base64": message}),
        }


class PayloadsFile:
    """A file with every message exactly as it is sent, one line of JSON each.

    A line has the time, the host, and the message: as `body` if that is JSON, else as `base64`. For
    a message to a cloud model it also names the answer, and has as `text` what the message's token
    ids stand for. A message is written before it is sent; if that fails, it is not sent.
    """

    def __init__(self, path: Path) -> None:
        """Open the file at `path`, to append to it. Raises `UsageError` if that is not possible."""
        self._path = path
        try:
            # Nothing yet: a wrong path is told now, not in the middle of an answer.
            _append(path, b"")
        except OSError as error:
            raise UsageError(
                f"The file {str(path)!r} for what is sent cannot be written: {error.strerror}."
            ) from error

    def write(self, payload: dict[str, object]) -> None:
        """Append `payload` as a line. If this raises `CloudUnavailable`, send no message."""
        try:
            _append(self._path, msgspec.json.encode(payload) + b"\n")
        except OSError as error:
            raise CloudUnavailable(
                f"Nothing is sent, since {str(self._path)!r} cannot be written ({error.strerror})",
                hint="make room, or leave that file out",
            ) from error


def _append(path: Path, line: bytes) -> None:
    """Append to a file, which only its owner may read from then on. Raises `OSError`."""
    descriptor = private_file(path, os.O_RDWR | os.O_APPEND)
    try:
        # In one piece, so that lines of several processes stay whole.
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if line and os.lseek(descriptor, 0, os.SEEK_END):
            os.lseek(descriptor, -1, os.SEEK_END)
            if os.read(descriptor, 1) != b"\n":
                # The last writer was cut off: its half line must not swallow this one.
                line = b"\n" + line
        while line:
            line = line[os.write(descriptor, line) :]
    finally:
        os.close(descriptor)


def private_file(path: Path, flags: int) -> int:
    """Open a file that only this user may read, creating it if it is missing; return a descriptor.

    `flags` are those of `os.open`. Raises `OSError` if it is another user's, or no regular file.
    """
    # A pipe would be waited for; Windows has neither flag.
    flags |= os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise OSError(error.errno, _NO_FILE) from error
    try:
        require_own(os.fstat(descriptor))
        if hasattr(os, "fchmod"):
            # A file that was there before may be readable for others.
            os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_own(about: os.stat_result) -> None:
    """Raise `OSError` unless `about` describes a regular file that this user owns."""
    # Windows has no user ids: both are 0 there.
    if not stat.S_ISREG(about.st_mode) or about.st_uid != getattr(os, "geteuid", int)():
        raise OSError(errno.EINVAL, _NO_FILE)
