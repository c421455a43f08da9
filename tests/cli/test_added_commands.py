"""Commands of packages: by an entry point, and a sentence where one cannot be loaded."""

import os
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


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("hello --name Ada", 0, "hello Ada"),
        ("many two", 0, "two"),
        ("--help", 0, "hello"),
        ("nothing --with arguments", 2, "'own_commands:nothing'"),
    ],
)
def test_a_package_adds_commands(
    cli: Run, tmp_path: Path, arguments: str, code: int, said: str
) -> None:
    (tmp_path / "own_commands.py").write_text(CODE)
    install(tmp_path, "own_commands", *POINTS, group="edgewise.commands")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = cli(*arguments.split(), code=code, PYTHONPATH=paths)
    assert said in (done.stderr if code else done.stdout)
    assert "Traceback" not in done.stderr
