"""What the documents show works as written."""

import re
from pathlib import Path
from typing import get_args

import pytest

from edgewise.errors import Fault
from edgewise.events import Reason
from tests.documents import PAGES, RECORDS, name_of

ROOT = Path(__file__).parents[1]


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
