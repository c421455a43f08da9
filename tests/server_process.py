"""Somebody else's server as a process of its own on 127.0.0.1."""

import itertools
import os
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

# Linux gives connections the ports from 32768 on, macOS and Windows those from 49152 on: a port
# among them can be a connection's before its server binds it. Each worker draws from its own.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 12
_DRAWN = itertools.count(os.getpid())


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on, and that no connection is given."""
    for _ in range(1000):
        port = 20_000 + 1000 * _WORKER + next(_DRAWN) % 1000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")


@contextmanager
def server_process(
    command: Sequence[str],
    url: str,
    *,
    log: Path,
    seconds: float = 60,
    variables: Mapping[str, str] | None = None,
    folder: Path | None = None,
    trusted: ssl.SSLContext | None = None,
) -> Iterator[int]:
    """Run `command` until the block ends, which begins once `url` answers; yields its pid.

    Its stdin is a pipe, which ends with this process. What it says is in `log`.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("EDGEWISE_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**own, **(variables or {})},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + seconds
        while not answers(url, trusted):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def answers(url: str, trusted: ssl.SSLContext | None = None) -> bool:
    """With a success."""
    try:
        urllib.request.urlopen(url, timeout=1, context=trusted).close()
    except OSError:
        return False
    return True
