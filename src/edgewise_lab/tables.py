"""Tables of figures, for a terminal (`commands`) and in Markdown (`benchmarks/`)."""

from collections.abc import Sequence
from typing import NamedTuple


class FigureTable(NamedTuple):
    """A table of figures: `title` is a sentence; each of `lines` has as many cells as `head`."""

    title: str
    head: list[str]
    lines: list[list[str]]


def line(cells: Sequence[str], *, head: bool = False) -> list[str]:
    """Return a table row as one line of Markdown, and with `head` the dashed line below it."""
    drawn = "| " + " | ".join(cells) + " |"
    return [drawn, "|---" * len(cells) + "|"] if head else [drawn]


def share(value: float, interval: tuple[float, float]) -> str:
    """Return a fraction and its 95% interval as text: "12.3% (10.1 to 14.5)"."""
    low, high = interval
    return f"{value:.1%} ({100 * low:.1f} to {100 * high:.1f})"
