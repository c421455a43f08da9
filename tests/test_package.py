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


def test_importing_edgewise_does_not_import_torch() -> None:
    code = "import sys, edgewise, edgewise.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_router_of_the_docs_runs_as_written() -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "routers.md").read_text(), re.DOTALL)
    assert block
    names: dict[str, type] = {}
    exec(block[1], names)
    from edgewise import Decoder, Policy
    from edgewise.testing.scripted_edge import ScriptedEdge, replying

    edge = ScriptedEdge(replying("blue", prompt="sky: "))
    decoder = Decoder(edge, router=names["Surprise"](), policy=Policy(threshold=0.5))
    assert decoder.generate(list(b"sky: ")).text == "blue"
