"""What docs/exit-codes.md says; an interrupted answer is in test_commands.py."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Edgewise
from tests.documents import ROOT, commands

TEXT = (ROOT / "docs" / "exit-codes.md").read_text()
EXAMPLES = re.findall(r"^\| (\d+) \|.*\| `(edgewise .*)` \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("code", "example"), EXAMPLES)
def test_the_examples_end_so(code: str, example: str, edgewise: Edgewise) -> None:
    ((words, _),) = commands(example)
    done = edgewise(*words[1:])
    assert done.code == int(code)
    assert "Traceback" not in done.err


def test_there_are_examples_of_failures() -> None:
    assert {code for code, _ in EXAMPLES} == {"1", "2"}


def test_a_server_that_is_told_to_end_is_done(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    command = [sys.executable, "-m", "edgewise", "serve", "--port", "0", "--cloud", "none"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        assert server.stderr is not None
        try:
            told = re.search(r"serving .* at (http://\S+)", server.stderr.readline())
            assert told
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0
            assert server.stderr.read() == ""
        finally:
            server.kill()
