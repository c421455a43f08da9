"""Engines open no socket and leave no file, and the tracer would have seen it."""

import sys
from pathlib import Path

import pytest

from benchmarks import sockets
from benchmarks.engine_models import installed, models_for

SECONDS = 3.0

ACTS = """
import os, socket
from pathlib import Path
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
for path in ("/nowhere", "/var/run/nscd/socket"):
    with socket.socket(socket.AF_UNIX) as local:
        local.connect_ex(path)
Path(os.environ["HOME"], "tmp-left").write_text("x")
Path(os.environ["HOME"], ".cache", "edgewise").mkdir()
Path(os.environ["HOME"], ".cache", "edgewise", "own").write_text("x")
os.mkdir(os.path.join(os.environ["HOME"], ".cache", "theirs"))
open("/dev/null", "w").close()
Path(os.environ["TMPDIR"], "forgotten").write_text("x")
print(os.environ.get("CI"), os.environ.get("ORT_DISABLE_TELEMETRY"))
"""


@pytest.fixture(autouse=True)
def tracer() -> None:
    if told := sockets.missing():
        pytest.skip(told)


def test_what_is_done_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "ORT_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "1")
    home = tmp_path / "home"
    found = sockets.Trace([sys.executable, "-c", ACTS], home).ended()
    assert (found.status, found.printed) == (0, "None None")
    opened, connected = found.sockets
    assert opened.startswith("AF_INET, SOCK_DGRAM")
    assert '"/nowhere"' in connected
    assert set(found.files) == {
        f"openat {home}/tmp-left",
        f"mkdir {home}/.cache/theirs",
        f"left {home}/tmp/forgotten",
    }


@pytest.mark.parametrize("engine", installed())
def test_an_engine_opens_no_socket_and_leaves_no_file(
    engine: str, bpe_path: Path, tmp_path: Path
) -> None:
    models = models_for([engine], bpe_path, tmp_path)
    found = sockets.start(engine, models[engine], SECONDS, tmp_path / "home").ended()
    assert (found.status, found.sockets, found.files) == (0, (), ())
    assert int(found.printed) > 0
    assert found.calls > 100
