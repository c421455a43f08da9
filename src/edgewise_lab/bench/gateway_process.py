"""A gateway as a process of its own on 127.0.0.1, for benchmarks and trials."""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import BinaryIO

import httpx2

from edgewise.errors import CloudUnavailable

START_SECONDS = 60


@contextmanager
def gateway_process(engine: str) -> Generator[str]:
    """Serve `engine` (a URL, or bundled); yields the gateway's URL. It ends with the block.

    Raises `CloudUnavailable` where it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "edgewise", "gateway", "--engine", engine, "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    # A file and not a pipe, which would stop the gateway when nobody reads it.
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told)  # noqa: S603
        try:
            _wait(url, process, told)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]", told: BinaryIO) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            told.seek(0)
            lines = told.read().decode("utf-8", "replace").strip().splitlines()
            reason = lines[-1].removeprefix("edgewise: ") if lines else "it said nothing"
            raise CloudUnavailable(f"The gateway did not start: {reason}")
        try:
            if httpx2.get(f"{url}/health", timeout=1, trust_env=False).is_success:
                return
        except httpx2.TransportError:
            time.sleep(0.05)
    raise CloudUnavailable(f"The gateway did not start within {START_SECONDS} s.")
