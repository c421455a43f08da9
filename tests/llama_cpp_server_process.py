"""llama-cpp-python's own server (its extra `server`) as a process of its own on 127.0.0.1."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.llama_server_process import free_port

START_SECONDS = 60

HERE = all(find_spec(name) for name in ("fastapi", "starlette_context", "pydantic_settings"))
"""Whether the extra is installed."""


@contextmanager
def llama_cpp_server(model: Path) -> Iterator[str]:
    """Serve `model`; yields the URL. The process ends with the block."""
    port = free_port()
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--n_ctx", "512"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--n_threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"llama_cpp.server ended with code {process.returncode}")
        try:
            urllib.request.urlopen(f"{url}/v1/models", timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("llama_cpp.server did not start")
