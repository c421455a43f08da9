"""What a terminal shows. Data go to stdout, everything else to stderr."""

import math
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from edgewise.evaluation import report
from edgewise.evaluation.report import Figures, Row
from edgewise.evaluation.statistics import Interval
from edgewise.events import Consult, Event, Finished, Timing, Token, Usage
from edgewise.loop.decoder import Answer, collect
from edgewise.routers.card import RouterCard

_COLOURS = None if os.environ.get("NO_COLOR") else "auto"

out = Console(highlight=False, soft_wrap=True, color_system=_COLOURS)
err = Console(stderr=True, highlight=False, soft_wrap=True, color_system=_COLOURS)

ALONE = (report.EDGE.system, report.CLOUD.system)
CLOUD = Style(color="red", bold=True)


# They reorder what is shown around them, so that text could pose as other text.
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """Without control characters: a model's output must not drive the terminal."""
    return "".join(
        c
        for c in text
        if c in "\n\t" or (unicodedata.category(c) not in ("Cc", "Cs") and c not in _REORDERING)
    )


def paint(events: Iterable[Event]) -> Answer:
    """Show an answer as it comes, cloud tokens in colour; returns it whole."""
    return collect(painted(events))


def painted(events: Iterable[Event]) -> Iterator[Event]:
    """The same events, shown on their way.

    The first consult that failed is told on stderr, once the answer is complete.
    """
    problem: str | None = None
    for event in events:
        if isinstance(event, Token):
            _write(event.text, CLOUD if event.source == "cloud" else Style())
        elif isinstance(event, Finished):
            _write(event.text + "\n", Style())
            if problem:
                note(f"the edge model stood in: {problem}")
        elif isinstance(event, Consult):
            problem = problem or event.message
        yield event


def _write(text: str, style: Style) -> None:
    # As a segment: rich's Text would turn tabs into spaces.
    out.print(Segments([Segment(printable(text), style)]), end="")
    out.file.flush()


def note(text: str) -> None:
    """A dim line on stderr."""
    err.print(Text(printable(text), Style(dim=True)))


def doubts(card: RouterCard) -> None:
    """What a router's own figures say against it, on stderr."""
    for doubt in card.doubts():
        err.print(Text(f"Warning: {printable(doubt)}", Style(color="yellow")))


def summary(answer: Answer) -> str:
    """One line about an answer."""
    return counted(answer.usage, answer.timing)


def counted(usage: Usage, timing: Timing, *, calls: bool = True) -> str:
    """Who wrote how many tokens, how fast; with `calls`, in how many consults."""
    total = usage.edge_tokens + usage.cloud_tokens
    wasted = f", {usage.wasted_tokens} wasted" if usage.wasted_tokens else ""
    failed = f", {usage.failed_calls} failed" if usage.failed_calls else ""
    consults = f"{usage.cloud_calls} calls{failed}, " if calls else ""
    return (
        f"{total} tokens, {usage.cloud_tokens} by the cloud{wasted} ({usage.cloud_share:.1%}), "
        f"{consults}{total / timing.total:.1f} tokens/s"
    )


def progress(*, hidden: bool = False) -> Progress:
    """A progress bar on stderr, where that is a terminal."""
    return Progress(console=err, disable=hidden or not err.is_terminal, transient=True)


def figures_table(title: str, table: Sequence[Row]) -> Table:
    """Every system's figures, one line each, within 80 columns."""
    shown = Table(title=f"{title} (95% intervals)", box=SIMPLE_HEAD, pad_edge=False)
    families = list(table[0].families)
    for name in ("system", "cloud share", "right", *families, "gap recovered"):
        shown.add_column(name, justify="left" if name == "system" else "right")
    for row in table:
        figures = row.overall
        shown.add_row(
            _named(figures),
            f"{figures.cloud_share:.1%}",
            f"{figures.accuracy:.1%}",
            *(f"{of_family.accuracy:.0%}" for of_family in row.families.values()),
            "" if figures.system in ALONE else gap(figures),
        )
    return shown


def cost_table(table: Sequence[Row]) -> Table:
    """What each system asked of the cloud, means an answer; an engine may bill all of it."""
    shown = Table(title="Asked of the cloud, an answer", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("system", "calls", "cloud tokens", "prompt computed", "prompt cached"):
        shown.add_column(name, justify="left" if name == "system" else "right")
    for figures in (row.overall for row in table):
        if figures.cloud_calls:
            totals = (
                figures.cloud_calls,
                figures.cloud_tokens,
                figures.prompt_computed,
                figures.prompt_cached,
            )
            means = (f"{total / figures.questions:.1f}" for total in totals)
            shown.add_row(_named(figures), *means)
    return shown


def _named(figures: Figures) -> str:
    asked = "" if figures.share_asked is None else f" at {figures.share_asked:.0%}"
    return figures.system + asked


def gap(figures: Figures) -> str:
    """The gap recovered and its interval."""
    if figures.gap_recovered is None or figures.gap_interval is None:
        return "no gap"
    return f"{figures.gap_recovered:.0%} {percent(figures.gap_interval)}"


def percent(interval: Interval) -> str:
    """An interval in percent; a question mark where too few questions leave an end open."""
    low, high = (f"{100 * end:.0f}" if math.isfinite(end) else "?" for end in interval)
    return f"({low} to {high})"
