"""A user's regular expressions, searched in a process that can be ended: `re` cannot be stopped."""

import atexit
import json
import os
import subprocess
import sys
import threading
from functools import cache

SECONDS = 10.0
"""How long a search may take, the process's start included."""

# A search for each line, which is a pattern and a text. It ends with its standard input.
_SEARCHING = """
import json, re, sys
for line in sys.stdin:
    pattern, text = json.loads(line)
    print(int(re.search(pattern, text) is not None), flush=True)
"""


class SearchTimeout(Exception):
    """A pattern took longer than `SECONDS` for a text."""


def search(pattern: str, text: str) -> bool:
    """Whether `pattern` occurs in `text`. Raises `SearchTimeout`."""
    return _searcher(os.getpid()).search(pattern, text)


@cache
def _searcher(process: int) -> "_Searcher":
    """One for each process: a fork must not share its parent's pipes."""
    searcher = _Searcher()
    atexit.register(searcher.end)
    return searcher


class _Searcher:
    """A child that searches, started when it is needed, and started again after a timeout."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def search(self, pattern: str, text: str) -> bool:
        """Whether `pattern` occurs in `text`. Raises `SearchTimeout`."""
        with self._lock:
            child = self._child = self._child or _start()
            assert child.stdin is not None
            assert child.stdout is not None
            watch = threading.Timer(SECONDS, child.kill)
            watch.start()
            try:
                # JSON in ASCII has no line breaks of its own, and passes any locale.
                child.stdin.write(f"{json.dumps([pattern, text])}\n")
                child.stdin.flush()
                reply = child.stdout.readline()
            except BrokenPipeError:
                reply = ""
            finally:
                watch.cancel()
            if not reply:
                self.end()
                raise SearchTimeout
            return reply == "1\n"

    def end(self) -> None:
        """End the child, where there is one."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", "-S", "-c", _SEARCHING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A terminal's Ctrl-C is for the parent.
        start_new_session=True,
    )
