"""The program of a child process: answers each request by one function, within limits.

Run as a file: `worker.py TARGET MEMORY SECONDS FOLDER...`. TARGET is `module:function`, imported
from the folders. The process may allocate MEMORY bytes, besides files that it maps, and ends
itself if a call takes SECONDS, in case its parent is gone. Requests come on stdin and replies go to
stdout as frames: a length (4 bytes, big-endian) and as many bytes. Before the first request an
empty frame on stdout says that the worker is ready. At the end of stdin the worker ends.
"""

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import IO

HEAD = 4
"""Bytes of the length at the beginning of a frame."""

Answer = Callable[[bytes], bytes]
"""Maps a request to its reply."""


def _limit(memory: int) -> None:
    """Set resource limits, if the platform supports them."""
    try:
        import resource
    except ImportError:
        return
    limits = {resource.RLIMIT_DATA: memory, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 1 << 20}
    for kind, most in limits.items():
        # Not every system takes each of them, and a lower one cannot be raised.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def _serve(requests: IO[bytes], replies: IO[bytes], answer: Answer, seconds: float) -> None:
    with open(os.devnull, "wb") as nowhere:
        send(replies, b"")
        while head := requests.read(HEAD):
            request = requests.read(int.from_bytes(head, "big"))
            # By a thread of C's: one long operation keeps all of Python's waiting.
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            reply = answer(request)
            faulthandler.cancel_dump_traceback_later()
            send(replies, reply)


def send(stream: IO[bytes], data: bytes) -> None:
    """Write `data` to `stream` as one frame."""
    stream.write(len(data).to_bytes(HEAD, "big") + data)
    stream.flush()


def main() -> None:
    """Run the worker with the arguments of the command line, until stdin ends."""
    # Ctrl-C is for the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target, memory, seconds, *folders = sys.argv[1:]
    sys.path.extend(folders)
    module, _, name = target.partition(":")
    answer = getattr(import_module(module), name)
    _limit(int(memory))
    # What the work prints must not stand between the frames.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, replies, answer, float(seconds))


if __name__ == "__main__":
    main()
