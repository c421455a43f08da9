"""The command line, in this process or in one of its own, away from any settings around."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog

from edgewise.cli.main import main
from edgewise.providers import PROVIDERS
from tests.programs import Done, python


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Edgewise = Callable[..., Result]
Run = Callable[..., Done]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer has set does not reach the commands."""
    for name in os.environ:
        keys = tuple(one.key for one in PROVIDERS)
        if name.startswith(("HF_", "EDGEWISE_", *keys)) or name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)


@pytest.fixture
def cli(tmp_path: Path) -> Run:
    """Run `edgewise` in a process of its own, in an empty folder; keywords are variables."""

    def run(*arguments: str, stdin: str = "", **variables: str) -> Done:
        home = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": "http://127.0.0.1:9"}
        own = {"code": None, "folder": tmp_path, "stdin": stdin}
        return python("-m", "edgewise", *arguments, **own, **home | variables)

    return run


@pytest.fixture
def edgewise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Edgewise]:
    """Run `edgewise` with these arguments in an empty folder, with `stdin` piped in."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["edgewise", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Result(stop.value.code, captured.out, captured.err)

    yield run
    # A gateway's logs are set up for the process, which here outlives the command's stderr.
    structlog.reset_defaults()
