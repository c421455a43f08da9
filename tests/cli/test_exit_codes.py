"""What docs/exit-codes.md says; an interrupted answer is in test_commands.py."""

import re

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
