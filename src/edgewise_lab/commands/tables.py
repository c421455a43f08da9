"""The tables of an evaluation: what every system gets right, by family, and what it asks for."""

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise.cli import render
from edgewise.cli.render import metered, printable
from edgewise_lab.evaluation import report
from edgewise_lab.evaluation.report import Figures, Row
from edgewise_lab.evaluation.statistics import Interval

ALONE = (report.EDGE.system, report.CLOUD.system)


def figures_tables(title: str, table: Sequence[Row]) -> None:
    """Print what every system gets right by both readings, by family, and what it asks for."""
    figures = [row.overall for row in table]
    render.show(_accuracies(f"{title} (95% intervals)", figures))
    if len(table[0].families) > 1:
        render.show(_by_family(table))
    render.show(_costs(figures))


def _columns(title: str, *names: str) -> Table:
    padding = (0, 0, 0, 1)
    title = printable(title)
    table = Table(title=title, box=SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
    table.add_column("system", overflow="fold")
    for name in names:
        table.add_column(printable(name), justify="right", overflow="fold")
    return table


def _accuracies(title: str, table: Sequence[Figures]) -> Table:
    gap_name = "gap\nrecovered"
    shown = _columns(title, "cloud\nshare", "right", gap_name, "strictly\nright", gap_name)
    for one in table:
        bare = one.system in ALONE
        shown.add_row(
            _named(one),
            f"{one.cloud_share:.1%}",
            f"{one.accuracy:.1%}",
            "" if bare else gap(one.gap_recovered, one.gap_interval),
            f"{one.strict_accuracy:.1%}",
            "" if bare else gap(one.strict_gap_recovered, one.strict_gap_interval),
        )
    shown.caption = _without_gap(table[0])
    return shown


def _by_family(table: Sequence[Row]) -> Table:
    shown = _columns("Right / strictly right by family, %", *table[0].families)
    for row in table:
        both = (
            f"{100 * one.accuracy:.0f} / {100 * one.strict_accuracy:.0f}"
            for one in row.families.values()
        )
        shown.add_row(_named(row.overall), *both)
    return shown


def _costs(table: Sequence[Figures]) -> Table:
    """Means an answer; an engine may bill all of it."""
    names = ("calls", "prompt\ncomputed", "prompt\ncached", "written", "wasted", "cloud\nwork")
    shown = _columns("Asked of the cloud, tokens an answer", *names)
    for one in table:
        n = one.questions
        if one.cloud_calls:
            shown.add_row(
                _named(one),
                f"{one.cloud_calls / n:.1f}",
                metered(one.prompt_computed and one.prompt_computed / n, ".1f"),
                metered(one.prompt_cached and one.prompt_cached / n, ".1f"),
                f"{(one.cloud_tokens + one.wasted_tokens) / n:.1f}",
                f"{one.wasted_tokens / n:.1f}",
                metered(one.cloud_work, ".0%"),
            )
    shown.caption = (
        "wasted: written or asked for in vain; part of the cloud share\n"
        "cloud work: prompt tokens computed + tokens written, of the cloud alone's"
    )
    return shown


def _without_gap(figures: Figures) -> str | None:
    """Which families the gap recovered leaves out, if it is that of others."""
    parts = [
        f"{', '.join(families)} by the {reading} reading"
        for reading, families, recovered in (
            ("lenient", figures.without_gap, figures.gap_recovered),
            ("strict", figures.strict_without_gap, figures.strict_gap_recovered),
        )
        if families and recovered is not None
    ]
    if not parts:
        return None
    return printable(f"The gap recovered leaves out {' and '.join(parts)}: no gap there.")


def _named(figures: Figures) -> str:
    asked = "" if figures.share_asked is None else f" at {figures.share_asked:.0%}"
    return printable(figures.system) + asked


def gap(recovered: float | None, interval: Interval | None) -> str:
    """The gap recovered and its interval."""
    if recovered is None or interval is None:
        return "no gap"
    return f"{recovered:.0%} {percent(interval)}"


def percent(interval: Interval) -> str:
    """An interval in percent; a question mark where too few questions leave an end open."""
    low, high = (f"{100 * end:.0f}" if math.isfinite(end) else "?" for end in interval)
    return f"({low} to {high})"
