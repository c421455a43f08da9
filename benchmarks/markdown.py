"""Tables in Markdown."""

from collections.abc import Sequence


def line(cells: Sequence[str], *, head: bool = False) -> list[str]:
    """One line of a table, with the rule under it where it is the head."""
    drawn = "| " + " | ".join(cells) + " |"
    return [drawn, "|---" * len(cells) + "|"] if head else [drawn]


def percent(figure: tuple[float, tuple[float, float]]) -> str:
    """A figure and its 95 % interval; an end that is open is left out."""
    value, ends = figure
    if value != value:
        return "no gap"
    low, high = (f"{100 * end:.0f}" if abs(end) < 1e6 else "?" for end in ends)
    return f"{100 * value:.0f} ({low} to {high})"
