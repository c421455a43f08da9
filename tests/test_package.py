"""What is exported, what is documented, and that the examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgewise

ROOT = Path(__file__).parents[1]


def test_every_exported_name_exists() -> None:
    assert sorted(edgewise.__all__, key=str.lower) == edgewise.__all__
    assert all(hasattr(edgewise, name) for name in edgewise.__all__)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip()


def test_the_readme_is_short_and_names_only_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 150
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    assert links
    assert all((ROOT / link).exists() for link in links)


def loaded_with(module: str) -> set[str]:
    """The packages that are imported with it."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_root_is_light() -> None:
    """Nothing of the command line, of servers, of plots or of training comes with the library."""
    heavy = {"torch", "scipy", "matplotlib", "pyarrow", "huggingface_hub", "typer", "rich"}
    heavy |= {"fastapi", "starlette", "uvicorn", "prometheus_client", "structlog", "websockets"}
    found = loaded_with("edgewise")
    assert "edgewise" in found
    assert not heavy & found
