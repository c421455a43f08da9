"""What the documents show works as written."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import Fault
from edgewise.events import Reason
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from tests.documents import PAGES, RECORDS, name_of

ROOT = Path(__file__).parents[1]


def python_blocks(document: str) -> list[str]:
    """The Python in a document."""
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_a_router_in_ten_lines() -> None:
    block, *_ = python_blocks("docs/routers.md")
    names: dict[str, Any] = {}
    exec(block, names)
    assert len(names["Surprise"].__dict__) > 0
    assert block[block.index("class") :].count("\n") <= 10
    with LlamaModel(bundled("edge"), threads=1) as edge:
        decoder = Decoder(edge, router=names["Surprise"](), policy=Policy(threshold=0.5))
        answer = decoder.generate(edge.tokenizer.encode_prompt("Hello"), max_tokens=8)
    assert all(0 <= token.score <= 1 for token in answer.tokens if token.score is not None)
    assert {token.reason for token in answer.tokens} <= {"below_threshold", "no_cloud"}


def test_every_defence_names_a_test_that_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    targets = re.findall(r"\]\(([^)#:]+)\)", text)
    for target in targets:
        assert (ROOT / target).exists(), target
    assert len([target for target in targets if target.startswith("tests/")]) > 20
    defended = text[text.index("## What is defended") : text.index("## What is not defended")]
    rows = [line for line in defended.splitlines() if line.startswith("|") and "---" not in line]
    for row in rows:
        assert "](tests/" in row or re.search(r"\| test \|$", row), row


def anchors(page: Path) -> set[str]:
    """What a link may name in a page: its headings, as the web shows them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *RECORDS], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), target
        if anchor:
            assert anchor in anchors(other), target


def test_every_reason_is_explained() -> None:
    text = (ROOT / "docs" / "life-of-a-token.md").read_text()
    table = text[text.index("## Reasons") : text.index("## Rollback")]
    assert set(re.findall(r"`(\w+)`", table)) >= {*get_args(Reason), *get_args(Fault)}
