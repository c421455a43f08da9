"""What the documents show works as written; the site has them all, and a reference of the code."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import edgewise
from edgewise import Pair
from edgewise.settings import Settings
from tests.documents import PAGES, ROOT, name_of
from website.pages import linked, places, write
from website.reference import REFERENCE


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


WORDS = {"README.md": 900, "CONTRIBUTING.md": 1_200, "SECURITY.md": 1_500}
WORDS |= {"docs/protocol.md": 3_000}
ALL_WORDS = 33_200
BUILT = ("node_modules", "build", "dist")


def documents() -> list[Path]:
    """Every Markdown file that git holds; without git, those that are not installed or built."""
    if (ROOT / ".git").exists() and (git := shutil.which("git")):
        held = subprocess.run([git, "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True)
        if held.returncode == 0:
            named = (ROOT / name for name in held.stdout.decode().split("\0") if name)
            return [path for path in named if path.exists()]
    return [path for path in ROOT.rglob("*.md") if is_written(path.relative_to(ROOT))]


def is_written(path: Path) -> bool:
    return not any(part in BUILT or part.startswith(".") for part in path.parts)


def words(path: Path) -> int:
    """As `wc -w` counts them."""
    return len(path.read_text(encoding="utf-8").split())


def test_documents_keep_to_their_budget_of_words() -> None:
    assert {name: words(ROOT / name) for name in WORDS if words(ROOT / name) > WORDS[name]} == {}
    counted = {name_of(path): words(path) for path in documents()}
    assert set(WORDS) <= set(counted)
    assert sum(counted.values()) <= ALL_WORDS, counted


WINS = {
    "Question: Where in the world is Iceland? Choices: Oceania, Africa, Europe, Asia, "
    "North America. Say just what is needed. Answer and Reasoning:": "the answer is Europe.",
    "Question: What are wine, horse and spaghetti? Come to the point. Answer and Reasoning:": (
        "spaghetti is a kind of pasta."
    ),
}


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / "examples").glob("*.py")], ids=name_of)
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages, as the builder is given them."""
    folder = tmp_path_factory.mktemp("site")
    write(folder)
    return folder


def listed(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inside = nav.values() if isinstance(nav, dict) else nav
    return [page for one in inside for page in listed(one)]


def test_the_menu_names_every_page_once(site: Path) -> None:
    nav = listed(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    assert sorted(nav) == sorted(page.relative_to(site).as_posix() for page in site.rglob("*.md"))


def test_links_of_the_repository_hold_on_the_site() -> None:
    def there(link: str, source: str | None = None) -> str:
        return linked(link, "docs/privacy.md", places(), source)

    fenced = "```sh\n[all](../README.md)\n```"
    code = "[keys](https://git/blob/tests/keys.py)"
    assert there("[costs](costs.md#the-price)") == "[costs](costs.md#the-price)"
    assert there("[all](../README.md)") == "[all](index.md)"
    assert there("[keys](../tests/keys.py)", "https://git/blob") == code
    assert there(fenced) == fenced


def test_the_reference_has_every_command_setting_and_path(site: Path) -> None:
    pages = {name: (site / "reference" / name).read_text() for name in REFERENCE}
    for command in ("run", "serve", "keys add", "bench link"):
        assert f"`edgewise {command}`" in pages["commands.md"]
    for setting in msgspec.structs.fields(Settings):
        assert f"`EDGEWISE_{setting.name.upper()}`; " in pages["settings.md"]
    assert "## `POST /v1/chat/completions`" in pages["server.md"]
    assert all(f"::: edgewise.{name}\n" in pages["python.md"] for name in edgewise.__all__)
    assert "`circuit_open`" in pages["errors.md"]
