"""Gateways as processes of their own, as operators start them."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.server_process import answers

START_SECONDS = 60
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = iter(range(10_000 + 2_000 * (_WORKER % 11), 12_000 + 2_000 * (_WORKER % 11)))


def lasting_port() -> int:
    """A port that nothing listens on, and that no connection to elsewhere is given meanwhile.

    Systems number those from 32,768 on; a server that is started later, or again, finds it free.
    Each process of the tests has a range of its own, of which no port is given twice.
    """
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("every port of this process was given")


class ServerProcess:
    """`edgewise gateway` or `serve` on a port of its own; it may be ended and started again."""

    def __init__(
        self, told: Path, *words: str, files: int = 1024, host: str = "127.0.0.1", ready: str = ""
    ) -> None:
        """What it writes to stderr goes to the file `told`; it may have `files` open files.

        It is ready once it answers at `ready`.
        """
        self.port = lasting_port()
        self.url = f"http://{host}:{self.port}"
        command = [sys.executable, "-m", "edgewise", *words, "--port", str(self.port)]
        self._command = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *command]
        self._told, self._ready = told, ready or "/health"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it is ready."""
        self.begin()
        self.require_ready()

    def begin(self) -> None:
        """Start; returns at once."""
        kept = {name: value for name, value in os.environ.items() if name[:9] != "EDGEWISE_"}
        # A file and not a pipe, which would stop the server when nobody reads it.
        with self._told.open("ab") as told:
            self._process = subprocess.Popen(
                self._command,
                env=kept,
                cwd=self._told.parent,
                stdout=subprocess.DEVNULL,
                stderr=told,
            )

    def require_ready(self) -> None:
        """Wait until it is; fails where it ended."""
        until(lambda: self._stands() and answers(self.url + self._ready), "the server's readiness")

    def kill(self) -> None:
        """SIGKILL: nothing is saved, nobody is told."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def drain(self, number: int = signal.SIGTERM) -> None:
        """Send a signal; returns at once."""
        assert self._process is not None
        self._process.send_signal(number)

    def ended(self) -> int:
        """Its exit status, once it has one."""
        assert self._process is not None
        return self._process.wait(START_SECONDS)

    def close(self) -> None:
        """Whatever state it is in."""
        if self._process is not None:
            self.kill()

    def told(self) -> str:
        """What it wrote to stderr, every start of it."""
        return self._told.read_text()

    def status(self, path: str, data: bytes | None = None, **headers: str) -> int:
        """Of an answer to GET, or to POST of `data`; `headers` have _ for -."""
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        method = "GET" if data is None else "POST"
        with httpx2.Client(trust_env=False, timeout=60) as http:
            return http.request(method, self.url + path, content=data, headers=spelled).status_code

    def _stands(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the server did not start: {self.told()}")
        return True


class GatewayProcess(ServerProcess):
    """A gateway with keys."""

    def __init__(self, engine: str, keys: Path, told: Path, *more: str) -> None:
        """`more` are further flags."""
        words = ("gateway", "--engine", engine, "--keys", str(keys), *more)
        super().__init__(told, *words, ready="/ready")

    def count(self, name: str, **labels: str) -> float:
        """A number of its metrics, 0 where it has not counted yet."""
        return metric(f"{self.url}/metrics", f"edgewise_gateway_{name}", **labels)


@contextmanager
def server(*words: str, files: int = 1024, host: str = "127.0.0.1") -> Iterator[ServerProcess]:
    """Serve until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        process = ServerProcess(Path(folder) / "stderr", *words, files=files, host=host)
        try:
            process.start()
            yield process
        finally:
            process.close()


def metric(url: str, name: str, **labels: str) -> float:
    """The sum of a Prometheus metric over what has these labels."""
    found = httpx2.get(url, timeout=60, trust_env=False).text
    total = 0.0
    for given, number in re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", found, re.MULTILINE):
        if set(labels.items()) <= set(re.findall(r'(\w+)="([^"]*)"', given)):
            total += float(number)
    return total


def until(true: Callable[[], object], what: str = "it", pause: float = 0.02) -> None:
    """Wait, and look again after each `pause`; fails after a long time."""
    end = time.monotonic() + START_SECONDS
    while not true():
        if time.monotonic() > end:
            pytest.fail(f"{what} did not come within {START_SECONDS} s")
        time.sleep(pause)
