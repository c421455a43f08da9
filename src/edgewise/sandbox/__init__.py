"""Child processes for work on untrusted files: bounded in time and memory, and free to crash.

One renders chat templates; another is the first to load a model file. Each runs `worker.py`.
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
"""Timeout of a child's start; generous, for a busy machine."""

# Environment variables that a child inherits, as Python may need them; no API keys.
_KEPT = ("TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")

_GRACE = 1.0  # seconds after the limit at which the process ends itself, in case its parent is gone

Why = Literal["start", "time", "process"]
"""Why a child ended: it did not start, took too long, or crashed."""


class ChildEnded(Exception):
    """A child process ended before it replied, or its reply was too long.

    `why` is "start" if it did not get ready, "time" if it was killed for taking too long, "process"
    otherwise. `status` is the exit status, `words` the lines of stderr (with `keep_words`).
    """

    def __init__(self, why: Why, status: int | None = None, words: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.why: Why = why
        self.status, self.words = status, words


class Child:
    """A child process that applies one function (bytes to bytes) to each request sent to it."""

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
        """Start the process, without waiting until it is ready. Raises `OSError`.

        `target` is the function, as `module:function`; besides Python's own library only `folders`
        are searched for modules. A call may take `seconds`, the process `memory` bytes, a reply
        `longest` bytes. `environment` adds variables. With `keep_words` stderr is kept for
        `ChildEnded`; it is read only once the process has ended, so a process that writes more
        than a pipe holds blocks until it is killed for taking too long.
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
        """Whether the process is still running."""
        return self._process.poll() is None

    def ask(self, request: bytes) -> bytes:
        """Send a request to the process, once it is ready, and return its reply.

        Raises `ChildEnded` if it ends, takes too long or replies too much. On any error call `end`.
        """
        if not self._ready:
            with self._within(START_SECONDS):
                self._receive()
            self._ready = True
        with self._within(self._seconds):
            worker.send(self._requests, request)
            return self._receive()

    def kill(self) -> None:
        """Kill the process and its group; an `ask` in another thread then raises `ChildEnded`."""
        if self._process.returncode is None and sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def end(self) -> None:
        """Kill the process, wait until it has ended, and close the pipes to it."""
        self.kill()
        self._process.wait()
        self._close()

    def abandon(self) -> None:
        """In a fork of the parent process, close the pipes to the child, which the parent keeps."""
        # It is no child of the fork, which could not wait for it.
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
        """Kill the process if the block takes too long. Raises `ChildEnded` for a broken pipe."""
        # A read from a pipe has no timeout of its own.
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
        """Return the exit status of a process that closed its pipes; kill it if it still runs."""
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
