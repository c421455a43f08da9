"""`edgewise serve` as a process of its own, as users start it."""

import ssl
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx2

from edgewise.addresses import bundled
from edgewise.testing.link import Link, Quality
from tests.llama_server_process import llama_server
from tests.server_process import free_port, server_process


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
    url = f"{'https' if trusted else 'http'}://127.0.0.1:{port}"
    with TemporaryDirectory() as name:
        own: Any = {"variables": environment, "folder": Path(name), "trusted": trusted}
        with server_process(command, f"{url}/health", log=Path(name) / "log", **own) as pid:
            yield Server(url, pid)


@contextmanager
def far_cloud(round_trip: float) -> Iterator[Link]:
    """A llama-server with the bundled cloud model, at a link's URL."""
    with llama_server(bundled("cloud")) as engine:
        port = int(engine.rpartition(":")[2])
        with closing(Link("127.0.0.1", port, Quality(round_trip=round_trip))) as link:
            yield link


def get(url: str, **more: Any) -> httpx2.Response:
    """A page of a server that runs here."""
    return httpx2.get(url, timeout=60, trust_env=False, **more)


def post(url: str, path: str, **body: Any) -> httpx2.Response:
    """What a server that runs here replies to a JSON body."""
    return httpx2.post(f"{url}/{path}", json=body, timeout=120, trust_env=False)
