"""`edgewise serve` as a process of its own, as users start it."""

import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx2

from tests.server_process import free_port

START_SECONDS = 60


class Server(NamedTuple):
    """A process that serves."""

    url: str
    pid: int


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[str]:
    """Serve with these flags (the bundled pair without any); yields the URL."""
    with running(*arguments, **environment) as server:
        yield server.url


@contextmanager
def running(
    *arguments: str, trusted: ssl.SSLContext | None = None, **environment: str
) -> Iterator[Server]:
    """As `serving`, for tests that look at the process too; by TLS where that is `trusted`."""
    port = free_port()
    command = [sys.executable, "-m", "edgewise", "serve", "--port", str(port), *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEWISE_")}
    with tempfile.TemporaryFile() as told, tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command, env=kept | environment, cwd=folder, stdout=told, stderr=told
        )
        url = f"{'https' if trusted else 'http'}://127.0.0.1:{port}"
        try:
            end = time.monotonic() + START_SECONDS
            while not _answers(url, trusted):
                if process.poll() is not None or time.monotonic() > end:
                    told.seek(0)
                    raise RuntimeError(f"the server did not start: {told.read().decode()}")
                time.sleep(0.05)
            yield Server(url, process.pid)
        finally:
            process.terminate()
            process.wait(timeout=60)


def get(url: str, **more: Any) -> httpx2.Response:
    """A page of a server that runs here."""
    return httpx2.get(url, timeout=60, trust_env=False, **more)


def post(url: str, path: str, **body: Any) -> httpx2.Response:
    """What a server that runs here replies to a JSON body."""
    return httpx2.post(f"{url}/{path}", json=body, timeout=120, trust_env=False)


def _answers(url: str, trusted: ssl.SSLContext | None) -> bool:
    try:
        verified = True if trusted is None else trusted
        return httpx2.get(f"{url}/health", timeout=2, trust_env=False, verify=verified).is_success
    except httpx2.TransportError:
        return False
