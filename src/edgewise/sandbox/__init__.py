"""A child process for work that others' files make: it is bounded, and may be lost.

Chat templates are rendered in one, and the first load of a model file happens in one. Limits of
time and memory are the operating system's; the child is killed where it goes beyond. `worker.py`
is its inside.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

from edgewise.sandbox import worker

START_SECONDS = 30.0
"""Timeout of a process's start, on a machine that has much else to do."""

_KEPT = ("TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")
"""Variables that an interpreter may need. Keys are not among them."""

_GRACE = 1.0  # seconds after the limit at which the process ends itself, in case its parent is gone

Why = Literal["start", "time", "process"]


class ChildEnded(Exception):
    """The process did not start, was killed for the time it took, or ended by itself.

    `status` is its exit status, `words` the last lines of its stderr if they were kept.
    """

    def __init__(self, why: Why, status: int | None = None, words: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.why: Why = why
        self.status, self.words = status, words


class Child:
    """Calls one function, bytes to bytes, again and again. It ends with its parent."""

    def __init__(
        self,
        target: str,
        *,
        seconds: float,
        memory: int,
        longest: int,
        folders: Sequence[str],
        environment: Mapping[str, str] | None = None,
        keep_words: bool = False,
    ) -> None:
        """Begin to start it. Raises `OSError`.

        `target` is `module:function`, imported from `folders` alone. A call takes at most
        `seconds`, the process `memory` bytes, a reply `longest` bytes. With `keep_words` the end of
        its stderr is kept for `ChildEnded`; it is read when the process has ended, so one that
        writes more than a pipe holds is killed for its time.
        """
        self._seconds, self._longest = seconds, longest
        self._ready = False
        limits = [str(memory), str(seconds + _GRACE)]
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._process = subprocess.Popen(  # noqa: S603
            # Neither variables, nor the user's own packages, nor `.pth` files decide what is
            # imported.
            [sys.executable, "-I", "-S", worker.__file__, target, *limits, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if keep_words else subprocess.DEVNULL,
            env={**kept, **(environment or {})},
            cwd=Path(worker.__file__).parent,
            # A terminal's signals are for the parent.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
            | getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[bytes] = self._process.stdin
        self._replies: IO[bytes] = self._process.stdout

    @property
    def alive(self) -> bool:
        """Whether it can be asked, as far as is known."""
        return self._process.poll() is None

    def ask(self, request: bytes) -> bytes:
        """The reply. Raises `ChildEnded`; after that, or any other exception, `end` it."""
        if not self._ready:
            with self._within(START_SECONDS):
                self._receive()
            self._ready = True
        with self._within(self._seconds):
            worker.send(self._requests, request)
            return self._receive()

    def kill(self) -> None:
        """Kills it at once, and its group. A thread that asks it gets `ChildEnded`, and ends it."""
        if self._process.returncode is None and sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def end(self) -> None:
        """Kill it, and wait until nothing of it is left."""
        self.kill()
        self._process.wait()
        self._close()

    def abandon(self) -> None:
        """After a fork: close the pipes without killing the child, which belongs to the parent."""
        self._process.returncode = 0
        self._close()

    def _close(self) -> None:
        for stream in (self._requests, self._replies, self._process.stderr):
            # What a process that is gone was still to be sent is lost.
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    @contextmanager
    def _within(self, seconds: float) -> Generator[None]:
        """Kill the process after so long, which ends every read and write."""
        watch = threading.Timer(seconds, self.kill)
        watch.daemon = True
        end = time.monotonic() + seconds
        watch.start()
        try:
            yield
        except (OSError, EOFError) as error:
            late: Why = "time" if time.monotonic() >= end else "process"
            status, stderr = self._status(), self._process.stderr
            words = stderr.read().decode("utf-8", "replace").splitlines() if stderr else []
            why = late if self._ready else "start"
            raise ChildEnded(
                why, status, [word.strip() for word in words if word.strip()]
            ) from error
        finally:
            watch.cancel()

    def _status(self) -> int:
        """Exit code of a process whose pipes are closed. Kills one that is still running."""
        try:
            return self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def _receive(self) -> bytes:
        size = int.from_bytes(self._exactly(worker.HEAD), "big")
        if size > self._longest:
            raise EOFError("more than the process was allowed to write")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = self._replies.read(size)
        if len(data) < size:
            raise EOFError("the process ended")
        return data
