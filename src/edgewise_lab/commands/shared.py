"""What commands share: the options of tasks, notes to the user, progress bars, tables."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import Progress
from rich.table import Table

from edgewise.cli import options, render
from edgewise.cli.render import metered, printable
from edgewise.cloud.base import CloudModel
from edgewise.errors import CloudError, UsageError
from edgewise_lab.evaluation import report
from edgewise_lab.evaluation.report import Figures, Row
from edgewise_lab.evaluation.statistics import Interval
from edgewise_lab.evaluation.tasks.base import Grading, Task
from edgewise_lab.evaluation.tasks.programs import RUN_MEMORY, RUN_SECONDS
from edgewise_lab.tables import FigureTable

TaskName = Annotated[
    str,
    typer.Argument(
        help="pocketqa, everyday, commonsenseqa, gsm8k, humaneval or a file of prompts or chats."
    ),
]
Data = Annotated[Path | None, typer.Option(help="Local copy of the task's published file.")]
Check = Annotated[
    Grading | None,
    typer.Option(help="Grading of a JSON Lines file; default: choice, number or contains."),
]
MaxTokens = Annotated[
    int | None, typer.Option(help="Max answer tokens; default: the task's own, or 256 for a file.")
]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Only the first N questions.")]
Out = Annotated[Path | None, typer.Option(help="Folder of answers; an interrupted run continues.")]
Routers = Annotated[
    list[str] | None, typer.Option(metavar="ROUTER", help="As for run; repeatable.")
]
TargetShares = Annotated[
    list[float] | None, options.share_option("Target cloud share; repeatable.")
]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Questions answered at a time.")]


@contextmanager
def resume_hint(how: str) -> Generator[None]:
    """Print `how`, a hint on how to go on, if Ctrl-C or a `CloudError` ends the `with` block."""
    try:
        yield
    except (KeyboardInterrupt, CloudError):
        render.note(how)
        raise


def tell_of_code(tasks: Iterable[Task]) -> None:
    """Tell the user that code in replies is run on this machine, if a task asks for code."""
    if any(question.check == "code" for task in tasks for question in task.questions):
        render.note(
            "The code in replies is run on this machine, each in a process of at most "
            f"{RUN_SECONDS:g} s and {RUN_MEMORY >> 20} MB; it is no jail (docs/evaluation.md)."
        )


def counted(progress: Progress, name: str, total: int | None = None) -> Callable[..., None]:
    """Add a progress bar; return a function that moves it by 1, and sets `total` if given one."""
    bar = progress.add_task(name, total=total)

    def done(total: int | None = None) -> None:
        progress.update(bar, total=total)
        progress.advance(bar)

    return done


def require_writing(cloud: CloudModel, what: str) -> None:
    """Raise `UsageError` if the cloud reads passages and writes no tokens, which `what` needs."""
    if cloud.reads_passages:
        raise UsageError(
            f"{cloud.name!r} reads passages and writes no tokens, as {what} needs",
            hint="name a cloud that continues text",
            setting="cloud",
        )


def figures_tables(title: str, table: Sequence[Row], main: str | None = None) -> None:
    """Print tables: accuracy, its difference to the system named `main`, and costs."""
    figures = [row.overall for row in table]
    right = _accuracies(f"{title} (95% intervals)", figures, main)
    left, asked = figures[0].to_read, figures[0].questions
    told = f"{left} of {asked} replies are to be read: they are not counted." if left else None
    render.show(drawn(right, told))
    if len(table[0].families) > 1:
        render.show(drawn(_by_family(table)))
    render.show(drawn(_costs(figures), _COSTS))


def drawn(table: FigureTable, caption: str | None = None) -> Table:
    """Return the table as rich's `Table`, with the text `caption` below it."""
    found = Table(
        title=printable(table.title) or None,
        caption=caption,
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
        show_edge=False,
    )
    for number, name in enumerate(table.head):
        found.add_column(printable(name), justify="right" if number else "left", overflow="fold")
    for cells in table.lines:
        found.add_row(*cells)
    return found


_ALONE = (report.EDGE.system, report.CLOUD.system)


def _accuracies(title: str, table: Sequence[Figures], main: str | None) -> FigureTable:
    columns: dict[str, Callable[[Figures], str]] = {
        "system": _named,
        "cloud\nshare": lambda one: f"{one.cloud_share:.1%}",
        "right": lambda one: _with_ends(one.accuracy, one.interval),
        f"less\n{main}": lambda one: _in_points(one.difference, one.difference_interval),
        "gap\nrecovered": lambda one: (
            "" if one.system in _ALONE else gap(one.gap_recovered, one.gap_interval)
        ),
    }
    # If no prompt asks for a format, nothing is strictly right.
    if any(one.strict_accuracy for one in table):
        columns["strictly\nright"] = lambda one: f"{one.strict_accuracy:.0%}"
    if any(one.cut for one in table):
        columns["cut"] = lambda one: f"{one.cut:.0%}"
    return _table(title, columns, table)


def _table(
    title: str, columns: Mapping[str, Callable[[Figures], str]], table: Sequence[Figures]
) -> FigureTable:
    """Return a table without the columns that are empty for all systems."""
    cells = {head: [cell(one) for one in table] for head, cell in columns.items()}
    told = {head: column for head, column in cells.items() if any(column)}
    return FigureTable(title, list(told), [list(line) for line in zip(*told.values(), strict=True)])


def _in_points(value: float | None, interval: Interval | None) -> str:
    if value is None or interval is None:
        return ""
    low, high = interval
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{100 * value + 0.0:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _by_family(table: Sequence[Row]) -> FigureTable:
    def both(one: Figures) -> str:
        return f"{100 * one.accuracy:.0f} / {100 * one.strict_accuracy:.0f}"

    lines = [[_named(row.overall), *map(both, row.families.values())] for row in table]
    head = ["system", *table[0].families]
    return FigureTable("Right / strictly right by family, %", head, lines)


_COSTS = (
    "wasted: written or asked for in vain; part of the cloud share\n"
    "cloud work: prompt tokens computed + tokens written, of the cloud alone's"
)


def _costs(table: Sequence[Figures]) -> FigureTable:
    """Return the table of costs, as means per answer; a provider may bill all of these tokens."""
    columns: dict[str, Callable[[Figures], str]] = {
        "system": _named,
        "calls": lambda one: f"{one.cloud_calls / one.questions:.1f}",
        "prompt\ncomputed": lambda one: _each(one.prompt_computed, one.questions),
        "prompt\ncached": lambda one: _each(one.prompt_cached, one.questions),
        "failed": lambda one: f"{one.failed_calls / one.questions:.1f}",
        "written": lambda one: _each(one.written, one.questions),
        "wasted": lambda one: _each(one.wasted_tokens, one.questions),
        "cloud\nwork": lambda one: metered(one.cloud_work, ".0%"),
    }
    asking = [one for one in table if one.cloud_calls]
    return _table("Asked of the cloud, tokens an answer", columns, asking)


def _each(count: int | None, questions: int) -> str:
    return metered(count and count / questions, ".1f")


def _named(figures: Figures) -> str:
    return system_named(figures.system, figures.cloud_share_asked)


def system_named(system: str, share: float | None) -> str:
    """Return a system's printable name, such as "pair at 5%"."""
    return printable(system) + ("" if share is None else f" at {share:.0%}")


def gap(recovered: float | None, interval: Interval | None) -> str:
    """Return the text for the part of the gap (cloud - edge) recovered, 0.4: "40% (12 to 65)"."""
    if recovered is None or interval is None:
        return "no gap"
    return _with_ends(recovered, interval)


def _with_ends(value: float, interval: Interval) -> str:
    """Return a rate and its interval as text, without an infinite end (too few questions)."""
    low, high = (f"{100 * end:.0f}" if math.isfinite(end) else "" for end in interval)
    if low and high:
        ends = f"{low} to {high}"
    elif low or high:
        ends = f"{low} or more" if low else f"{high} or less"
    else:
        ends = "unsure"
    return f"{value:.0%} ({ends})"
