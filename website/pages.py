"""The documents as pages of the site.

They are written for the repository, where a link may lead to any file. On the site it leads to the
page of that file; what has no page is shown in the repository, where `pyproject.toml` names its
address (`Source` in `[project.urls]`), and is a path otherwise.
"""

import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from website.reference import REFERENCE

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"

_OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "pocket/README.md": "pocket.md",
}
"""Documents that do not lie in `docs`."""

_FENCE = re.compile(r"^(```|~~~).*?^\1[ ]*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()\s]+)\)")


def places() -> dict[str, str]:
    """Every file that the site has, by its path in the repository, and where it stands there."""
    inside = {
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix()
        for path in (ROOT / "docs").rglob("*")
        if path.suffix in (".md", ".png", ".svg")
    }
    return inside | _OUTSIDE


def write(folder: Path) -> None:
    """All pages, in place of what `folder` holds."""
    shutil.rmtree(folder, ignore_errors=True)
    found, source = places(), repository()
    for name, place in found.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            text = (ROOT / name).read_text(encoding="utf-8")
            target.write_text(linked(text, name, found, source), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / name, target)
    for name, page in REFERENCE.items():
        target = folder / "reference" / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(page(), encoding="utf-8")


def repository() -> str | None:
    """The address under which files of the repository are shown."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Source")
    return f"{address.rstrip('/')}/blob/main" if address else None


def linked(text: str, name: str, found: Mapping[str, str], source: str | None) -> str:
    """A document's text with links as they must be on the site; code stays as it is."""

    def follow(link: re.Match[str]) -> str:
        mark, label, target = link.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not path:
            return link[0]
        there = os.path.normpath(PurePosixPath(name).parent / path)
        if there in found:
            here = PurePosixPath(found[name]).parent
            end = f"#{anchor}" if anchor else ""
            return f"{mark}[{label}]({os.path.relpath(found[there], here)}{end})"
        if source is not None:
            return f"[{label}]({source}/{there})"
        return label if there in label else f"{label} (`{there}`)"

    parts, end = [], 0
    for code in _FENCE.finditer(text):
        parts += [_LINK.sub(follow, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(follow, text[end:])])
