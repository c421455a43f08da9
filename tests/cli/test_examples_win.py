"""What the documents ask the bundled pair: the edge alone is wrong, and the pair is right."""

import re
from pathlib import Path

import pytest

from edgewise import Pair
from tests.documents import ROOT

WINS = {
    "Question: Where in the world is Iceland? Choices: Oceania, Africa, Europe, Asia, "
    "North America. Say just what is needed. Answer and Reasoning:": "the answer is Europe.",
    "Question: What are wine, horse and spaghetti? Come to the point. Answer and Reasoning:": (
        "spaghetti is a kind of pasta."
    ),
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_documents_ask_what_the_pair_wins(page: Path) -> None:
    asked = re.findall(r"Question: [^\"\n]*?Reasoning:", page.read_text(encoding="utf-8"))
    assert set(asked) <= set(WINS)


@pytest.mark.parametrize(("question", "right"), WINS.items())
def test_the_edge_alone_is_wrong_and_the_pair_is_right(question: str, right: str) -> None:
    with Pair() as pair, Pair(cloud="none") as edge:
        assert right not in edge.ask(question).text
        answer = pair.ask(question)
    assert answer.text.endswith(right)
    assert answer.usage.correction_tokens == 1
