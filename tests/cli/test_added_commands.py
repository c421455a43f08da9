"""Commands of packages: by an entry point, and a sentence where one cannot be loaded."""

import os
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import Run
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


@pytest.fixture
def ran(cli: Run, package: Path) -> Run:
    """Run `edgewise` where that package is installed."""
    paths = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    return partial(cli, PYTHONPATH=paths)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["hello", "--name", "Ada"], "hello Ada"), (["many", "two"], "two"), (["--help"], "hello")],
)
def test_a_package_adds_commands(ran: Run, arguments: list[str], said: str) -> None:
    done = ran(*arguments)
    assert said in done.stdout, done.stderr


def test_one_that_cannot_be_loaded_is_a_sentence(ran: Run) -> None:
    done = ran("nothing", "--with", "arguments", code=2)
    assert "'own_commands:nothing'" in done.stderr
    assert "Traceback" not in done.stderr
