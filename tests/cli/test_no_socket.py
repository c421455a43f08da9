"""With `--cloud none` no engine opens a socket, library code in C included: a tracer looks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgewise.addresses import bundled

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(
        shutil.which("strace") is None and os.environ.get("TEST_SERVERS") != "required",
        reason="needs strace",
    ),
]


def opened(command: list[str], folder: Path) -> list[str]:
    """The calls that made a socket for the network, of a command and its children."""
    log = folder / "calls"
    # What a library takes for a wish to be silent would hide what it does elsewhere.
    quiet = {"CI", "ORT_DISABLE_TELEMETRY", "HF_HUB_OFFLINE", "DO_NOT_TRACK"}
    kept = {name: value for name, value in os.environ.items() if name not in quiet}
    subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=socket", "-o", str(log), *command],
        check=True,
        env=kept | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        timeout=300,
    )
    return [line for line in log.read_text().splitlines() if "AF_INET" in line]


def test_the_tracer_sees_a_socket(tmp_path: Path) -> None:
    code = "import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()"
    assert opened([sys.executable, "-c", code], tmp_path)


@pytest.mark.parametrize("engine", ["llamacpp", "onnx"])
def test_the_edge_opens_none(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    edge = bundled("edge") if engine == "llamacpp" else request.getfixturevalue("onnx_path")
    command = [sys.executable, "-m", "edgewise", "run", "Tell me about copper."]
    more = ["--edge", str(edge), "--cloud", "none", "--threads", "1", "--max-tokens", "8"]
    assert opened([*command, *more], tmp_path) == []
