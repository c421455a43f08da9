"""llama-cpp-python's own server (its extra `server`) as a process of its own on 127.0.0.1."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.server_process import free_port, server_process

HERE = all(find_spec(name) for name in ("fastapi", "starlette_context", "pydantic_settings"))
"""Whether the extra is installed."""


@contextmanager
def llama_cpp_server(model: Path) -> Iterator[str]:
    """Serve `model`; yields the URL. The process ends with the block."""
    port = free_port()
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--n_ctx", "512"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--n_threads", "1"]
    url = f"http://127.0.0.1:{port}"
    with server_process(command, f"{url}/v1/models", log=Path(os.devnull)):
        yield url
