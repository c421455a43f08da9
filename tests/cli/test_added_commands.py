"""Commands of packages: by an entry point, and a sentence where one cannot be loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import install

CODE = """
import typer

def hello(name: str = "you") -> None:
    print(f"hello {name}")

many = typer.Typer()

@many.command()
def one() -> None:
    print("one")

@many.command()
def two() -> None:
    print("two")
"""

POINTS = [f"{name} = own_commands:{name}" for name in ("hello", "many", "nothing")]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a package that is installed in it."""
    (tmp_path / "own_commands.py").write_text(CODE)
    install(tmp_path, "own_commands", *POINTS, group="edgewise.commands")
    return tmp_path


def ran(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "edgewise", *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["hello", "--name", "Ada"], "hello Ada"), (["many", "two"], "two"), (["--help"], "hello")],
)
def test_a_package_adds_commands(package: Path, arguments: list[str], said: str) -> None:
    done = ran(package, *arguments)
    assert (done.returncode, said in done.stdout) == (0, True), done.stderr


def test_one_that_cannot_be_loaded_is_a_sentence(package: Path) -> None:
    done = ran(package, "nothing", "--with", "arguments")
    assert done.returncode == 2
    assert "'own_commands:nothing'" in done.stderr
    assert "Traceback" not in done.stderr
