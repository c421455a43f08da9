"""What is exported, what is documented, and that the examples run."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip()


def test_extras_that_are_installed_exist() -> None:
    """A name that pip does not know installs nothing, with a warning alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [(ROOT / name).read_text() for name in ("Makefile", "README.md", "CONTRIBUTING.md")]
    asked = re.findall(r"'\.\[([a-z,-]+)\]'", "\n".join(texts))
    assert asked
    assert {name for each in asked for name in each.split(",")} <= {
        *project["optional-dependencies"]
    }
