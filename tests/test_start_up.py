"""What is imported before anything is done, counted; and the examples run."""

import json
from pathlib import Path

import pytest

from tests.programs import python

_COUNT = """
import json, runpy, sys
sys.argv = ["edgewise", *json.loads(sys.argv[1])]
try:
    from edgewise.cli.main import main
    main()
except SystemExit:
    pass
ours = sorted(name for name in sys.modules if name.partition(".")[0] == "edgewise")
print(json.dumps([ours, sorted(sys.modules)]), file=sys.stderr)
"""


def loaded(code: str, *arguments: str) -> tuple[list[str], set[str]]:
    """Our modules, and all, that are loaded behind `code`."""
    done = python("-c", code, json.dumps(arguments))
    ours, every = json.loads(done.stderr.splitlines()[-1])
    return ours, set(every)


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_imports_little(flag: str) -> None:
    ours, every = loaded(_COUNT, flag)
    assert len(ours) < 40, ours
    assert not every & {"numpy", "httpcore2", "huggingface_hub", "prompt_toolkit", "jinja2"}


def test_an_answer_of_the_bundled_pair_imports_what_it_needs() -> None:
    """No engine's client, no hub, no editor of lines: each would take as long as the answer."""
    ours, every = loaded(_COUNT, "run", "What is the capital of France?", "--max-tokens", "1")
    assert "edgewise.edge.llamacpp.model" in ours
    assert len(ours) < 120, ours
    assert not every & {"httpcore2", "huggingface_hub", "httpx2", "prompt_toolkit", "jinja2"}
    assert not every & {"edgewise.server", "edgewise.gateway"}


def test_the_package_imports_little() -> None:
    code = "import sys, json, edgewise; names = sorted(sys.modules); "
    code += "print(json.dumps([[n for n in names if 'edgewise' in n], names]), file=sys.stderr)"
    ours, every = loaded(code)
    assert len(ours) < 60, ours
    heavy = {"numpy", "torch", "scipy", "matplotlib", "pyarrow", "huggingface_hub", "typer", "rich"}
    heavy |= {"fastapi", "starlette", "uvicorn", "prometheus_client", "structlog", "websockets"}
    assert not heavy & every


def test_every_public_name_can_be_had() -> None:
    import edgewise

    assert {name: getattr(edgewise, name).__name__ for name in edgewise.__all__ if name != "Event"}
    assert set(edgewise.__all__) <= set(dir(edgewise))
    with pytest.raises(AttributeError, match="nothing"):
        _ = edgewise.nothing


ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(example: Path) -> None:
    assert python(str(example)).stdout.strip()
