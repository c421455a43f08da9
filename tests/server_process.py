"""Somebody else's server as a process of its own on 127.0.0.1."""

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server_process(
    command: Sequence[str],
    url: str,
    *,
    log: Path,
    seconds: float = 60,
    variables: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run `command` until the block ends, which begins once `url` answers.

    Its stdin is a pipe, which ends with this process. What it says is in `log`.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + seconds
        while not _answers(url):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except OSError:
        return False
    return True
