"""A process that renders chat templates, as seen by who asks it (`worker.py` is its inside)."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal

from edgewise.prompts import worker

START_SECONDS = 30.0
"""How long a process may take to start, on a machine that has much else to do."""

_LIBRARIES = ("jinja2", "markupsafe")
_KEPT = ("TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")
"""Of the environment: local time, and what an interpreter may need to start at all. No keys."""

_GRACE = 1.0
"""Seconds after the limit at which the process ends itself, where its parent is gone."""


Why = Literal["start", "time", "process"]


class ProcessEnded(Exception):
    """The process is gone: it did not start, it was ended for the time it took, or by itself."""

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why: Why = why


class TemplateProcess:
    """One request at a time. It ends with its parent, whatever ends that."""

    def __init__(self, *, seconds: float, memory: int, longest: int) -> None:
        """Begin to start it; see `worker.py` for the limits. Raises `OSError`."""
        self._seconds = seconds
        # In JSON a character takes six bytes at most.
        self._longest = 6 * longest + (1 << 16)
        self._ready = False
        limits = [memory, seconds + _GRACE, longest]
        self._process = subprocess.Popen(  # noqa: S603
            # Neither variables nor the user's own packages nor `.pth` files say what is imported.
            [sys.executable, "-I", "-S", worker.__file__, *map(str, limits), *_folders()],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            cwd=Path(worker.__file__).parent,
            # A terminal's signals are for who asks.
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
        """Whether it can be asked, as far as one knows."""
        return self._process.poll() is None

    def ask(self, request: bytes) -> bytes:
        """The reply. Raises `ProcessEnded`; after that, or any other exception, `end` it."""
        if not self._ready:
            try:
                with self._within(START_SECONDS):
                    self._receive()
            except ProcessEnded as error:
                raise ProcessEnded("start") from error
            self._ready = True
        with self._within(self._seconds):
            self._send(request)
            return self._receive()

    def kill(self) -> None:
        """At once; who asks it is told, and ends it."""
        self._process.kill()

    def end(self) -> None:
        """Kill it, and wait until nothing of it is left."""
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._replies.close()

    def abandon(self) -> None:
        """Leave it to the process that this one was forked from."""
        self._process.returncode = 0
        self._requests.close()
        self._replies.close()

    @contextmanager
    def _within(self, seconds: float) -> Generator[None]:
        """Kill the process after so long, which ends every read and write."""
        watch = threading.Timer(seconds, self._process.kill)
        watch.daemon = True
        end = time.monotonic() + seconds
        watch.start()
        try:
            yield
        except (OSError, EOFError) as error:
            raise ProcessEnded("time" if time.monotonic() >= end else "process") from error
        finally:
            watch.cancel()

    def _send(self, data: bytes) -> None:
        left = memoryview(len(data).to_bytes(worker.HEAD, "big") + data)
        while left:
            left = left[self._requests.write(left) :]

    def _receive(self) -> bytes:
        size = int.from_bytes(self._exactly(worker.HEAD), "big")
        if size > self._longest:
            raise EOFError("more than the process was allowed to write")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            found = self._replies.read(min(size - len(data), 1 << 20))
            if not found:
                raise EOFError("the process ended")
            data += found
        return bytes(data)


def _folders() -> list[str]:
    """Where the worker finds what it imports."""
    found = [find_spec(name) for name in _LIBRARIES]
    origins = [spec.origin for spec in found if spec is not None and spec.origin is not None]
    return list(dict.fromkeys(str(Path(origin).parents[1]) for origin in origins))
