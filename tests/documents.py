"""What the documents show: blocks of code, what stands before them, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        ROOT / "pocket" / "README.md",
    ]
)
MARK = re.compile(r"<!-- not run: (\S.*) -->")
"""Stands before a block that needs what is not here, and says what."""

_FENCE = re.compile(r"[ ]*```(\w*)\s*")
_ASSIGNED = re.compile(r"(\w+)=(.*)", re.DOTALL)


class Block(NamedTuple):
    """A block of code: the line it begins on, its language, why it is not run where it is not."""

    page: str
    line: int
    language: str
    text: str
    mark: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Command(NamedTuple):
    """A command of a block: its words, without the variables before it."""

    words: list[str]
    variables: dict[str, str]


def name_of(page: Path) -> str:
    """A page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page."""
    before, language, begun = "", None, 0
    held: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if language is None and fence:
            language, begun, held = fence[1], number, []
        elif fence:
            mark = MARK.fullmatch(before.strip())
            text = "".join(f"{one}\n" for one in held)
            yield Block(name_of(page), begun, language or "", text, mark[1] if mark else None)
            language = None
        elif language is not None:
            held.append(line)
        if language is None:
            before = line
    assert language is None, f"{name_of(page)}:{begun} is never closed"


def commands(text: str) -> Iterator[Command]:
    """The commands of a shell block; what it assigns is put where it is used."""
    known: dict[str, str] = {}
    for line in _lines(text):
        for name, value in known.items():
            line = line.replace(f"${name}", value)
        words = shlex.split(line, comments=True)
        for _, one in groupby(words, "&".__eq__):
            held, variables = [word for word in one if word != "&"], dict[str, str]()
            while held and (given := _ASSIGNED.fullmatch(held[0])):
                variables[given[1]] = given[2]
                del held[0]
            if held:
                yield Command(held, variables)
            else:
                known |= variables


def _lines(text: str) -> Iterator[str]:
    """Those of a shell: one may go on behind a backslash, or in quotes."""
    held = ""
    for line in text.replace("\\\n", " ").splitlines():
        held += f"{line}\n"
        try:
            shlex.split(held, comments=True)
        except ValueError:
            continue
        yield held
        held = ""
    assert not held, f"a quotation is never closed: {held}"
