"""`edgewise gateway` and `edgewise serve` as processes, with limits and everything they say."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.server_process import free_port

START_SECONDS = 90


class Process(NamedTuple):
    """A server that listens, and where what it says is kept."""

    port: int
    started: "subprocess.Popen[bytes]"
    told: Path

    def lines(self) -> list[str]:
        """Of stderr, so far."""
        return self.told.read_text().splitlines()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        self.started.send_signal(number)
        return self.started.wait(30)

    def status(self, path: str, **headers: str) -> int:
        """Of an answer to GET."""
        return status(f"http://127.0.0.1:{self.port}{path}", **headers)


def status(url: str, data: bytes | None = None, **headers: str) -> int:
    """Of an answer; `headers` have _ for -."""
    spelled = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        request = urllib.request.Request(url, data, spelled)
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


@contextmanager
def server(command: str, *arguments: str, files: int = 1024, host: str = "") -> Iterator[Process]:
    """Serve until the block ends, with that many open files at most."""
    port = free_port()
    words = [sys.executable, "-m", "edgewise", command, "--port", str(port), *arguments]
    limited = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *words]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEWISE_")}
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "stderr"
        with told.open("wb") as stderr:
            started = subprocess.Popen(limited, stderr=stderr, cwd=folder, env=kept)
        try:
            end = time.monotonic() + START_SECONDS
            while not _answers(f"http://{host or '127.0.0.1'}:{port}/health"):
                assert started.poll() is None, told.read_text()
                assert time.monotonic() < end
                time.sleep(0.05)
            yield Process(port, started, told)
        finally:
            started.kill()
            started.wait()


def _answers(url: str) -> bool:
    try:
        return status(url) == 200
    except OSError:
        return False
