"""What a release does is what CONTRIBUTING.md says, with as few rights as it needs."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / ".github/workflows/release.yml").read_text()
# YAML takes the key `on` for a truth value.
RELEASE: dict[Any, Any] = yaml.safe_load(TEXT)
STEPS = [step for job in RELEASE["jobs"].values() for step in job["steps"]]


def test_the_version_is_that_of_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    first = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first
    assert first[1] == version
    assert re.fullmatch(r"unreleased|\d{4}-\d{2}-\d{2}", first[2])


def test_nothing_is_published_but_by_a_tag() -> None:
    assert RELEASE[True] == {"push": {"tags": ["v*"]}}
    assert RELEASE["jobs"]["publish"]["needs"] == "build"


def test_actions_are_pinned() -> None:
    used = re.findall(r"uses: (.*)", TEXT)
    assert len(used) == sum("uses" in step for step in STEPS)
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", one) for one in used), used


def test_who_builds_may_not_publish() -> None:
    assert RELEASE["permissions"] == {}
    rights = {name: job["permissions"] for name, job in RELEASE["jobs"].items()}
    assert rights == {"build": {"contents": "read"}, "publish": {"id-token": "write"}}
    assert "secrets." not in TEXT
    assert not any("run" in step for step in RELEASE["jobs"]["publish"]["steps"])


def test_what_it_makes_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = [goal for step in STEPS for goal in re.findall(r"^make (.*)$", step.get("run", ""))]
    assert set(" ".join(made).split()) == {"try", "sbom"} <= targets
    assert "wheel" in re.findall(r"^try: (.*?)  ##", (ROOT / "Makefile").read_text(), re.M)[0]


def test_the_check_list_names_what_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    told = text[text.index("## A release") :]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`", told)) <= targets
    for path in re.findall(r"\]\(([^)#:]+)\)", told):
        assert (ROOT / path).exists(), path
