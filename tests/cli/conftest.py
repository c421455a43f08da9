"""The command line, in this process or in one of its own, away from any settings around."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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


class Edgewise:
    """Runs `edgewise` with these arguments in this process, in a folder that can be written to."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self._monkeypatch, self._capsys, self.folder = monkeypatch, capsys, folder

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def write_lines(self, name: str, *lines: object) -> Path:
        """Each as JSON, unless it is text."""
        told = (one if isinstance(one, str) else json.dumps(one) for one in lines)
        return self.write(name, "".join(f"{one}\n" for one in told))

    def configure(self, text: str) -> None:
        """Let the folder's file have these settings."""
        self.write("edgewise.toml", f"{text}\n")

    def setenv(self, **variables: str) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int | None = 0) -> Result:
        """With `stdin` piped in; fails unless it ends with `code`, None being any."""
        self._monkeypatch.setattr(sys, "argv", ["edgewise", *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        told, found = self._capsys.readouterr(), stop.value.code
        assert isinstance(found, int)
        assert code in (None, found), told.err or told.out
        return Result(found, told.out, told.err)

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """What it prints with `--json`."""
        return json.loads(self(*arguments, "--json", stdin=stdin).out)

    def refusal(self, *arguments: str, stdin: bytes = b"") -> str:
        """The one sentence with which it ends, before anything is printed."""
        return sentence(self(*arguments, stdin=stdin, code=2))


def sentence(refused: Result) -> str:
    """What a command says that is refused; fails where it is not one sentence alone."""
    assert (refused.code, refused.out) == (2, ""), refused.err
    # A gateway logs lines of JSON.
    said = [line for line in refused.err.splitlines() if not line.startswith(("Warning: ", "{"))]
    assert len(said) == 1, refused.err
    assert said[0].startswith("edgewise: ")
    assert said[0].endswith((".", "?"))
    return said[0]


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
    """Run `edgewise` in a process of its own, in an empty folder; other keywords are variables."""

    def run(*arguments: str, stdin: str = "", code: int | None = 0, **variables: str) -> Done:
        home = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": "http://127.0.0.1:9"}
        own = {"code": code, "folder": tmp_path, "stdin": stdin}
        return python("-m", "edgewise", *arguments, **own, **home | variables)

    return run


@pytest.fixture
def edgewise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Edgewise]:
    """Run `edgewise` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    yield Edgewise(monkeypatch, capsys, tmp_path)
    # A gateway's logs are set up for the process, which here outlives the command's stderr.
    structlog.reset_defaults()
