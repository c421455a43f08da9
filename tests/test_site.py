"""The documentation's site has every document, and a reference that is made of the code."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import edgewise
from edgewise.settings import Settings
from tests.documents import ROOT
from website.pages import linked, places, write
from website.reference import REFERENCE


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages, as the builder is given them."""
    folder = tmp_path_factory.mktemp("site")
    write(folder)
    return folder


def listed(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values():
                yield from listed(inner)


def test_the_menu_names_every_page_once(site: Path) -> None:
    nav = list(listed(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    assert sorted(nav) == sorted(page.relative_to(site).as_posix() for page in site.rglob("*.md"))


@pytest.mark.parametrize(
    ("link", "source", "there"),
    [
        ("[costs](costs.md#the-price)", None, "[costs](costs.md#the-price)"),
        ("[all](../README.md)", None, "[all](index.md)"),
        ("[keys](../tests/keys.py)", "https://git/blob", "[keys](https://git/blob/tests/keys.py)"),
        ("```sh\n[all](../README.md)\n```", None, "```sh\n[all](../README.md)\n```"),
    ],
)
def test_links_of_the_repository_hold_on_the_site(
    link: str, source: str | None, there: str
) -> None:
    assert linked(link, "docs/privacy.md", places(), source) == there


def test_the_reference_has_every_command_setting_and_path(site: Path) -> None:
    pages = {name: (site / "reference" / name).read_text() for name in REFERENCE}
    for command in ("run", "serve", "keys add", "bench frontier"):
        assert f"`edgewise {command}`" in pages["commands.md"]
    assert "--cloud-share" in pages["commands.md"]
    for setting in msgspec.structs.fields(Settings):
        assert f"`EDGEWISE_{setting.name.upper()}`; " in pages["settings.md"]
    share = pages["settings.md"].partition("## `cloud-share`")[2].partition("##")[0]
    assert "`EDGEWISE_CLOUD_SHARE`" in share
    assert "A flag of" in share
    assert "`run`" in share
    assert "`train`" not in share
    assert "## `POST /v1/chat/completions`" in pages["server.md"]
    assert "| 429 | The queue is full" in pages["server.md"]
    assert all(f"::: edgewise.{name}\n" in pages["python.md"] for name in edgewise.__all__)
    assert "`circuit_open`" in pages["errors.md"]
