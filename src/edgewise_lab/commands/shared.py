"""Code that commands share: options of tasks, models of benchmarks, progress, tables."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.progress import Progress
from rich.table import Table

from edgewise.cli import options, render
from edgewise.cli.render import metered, printable
from edgewise.cloud.base import CloudModel
from edgewise.cloud.hosts import hosts_of, require_allowed
from edgewise.cloud.registry import AUTO
from edgewise.edge.base import EdgeModel
from edgewise.errors import CloudError, UsageError
from edgewise.opening import cloud_address, open_cloud, open_edge, require_one_cloud
from edgewise.settings import Settings
from edgewise_lab.bench.pace import HALF_BILLION, UNPACED, Pace, measured
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
PaceName = Annotated[
    str | None, typer.Option(help="Slow the edge to the speed of a 0.5b, or of a GGUF; or none.")
]
ForThresholds = Annotated[int, typer.Option(help="Extra questions for missing thresholds.")]
LinkShares = Annotated[
    list[float] | None, options.share_option("Cloud share; repeatable; default: 0.05.")
]
TargetShares = Annotated[
    list[float] | None, options.share_option("Target cloud share; repeatable.")
]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Questions answered at a time.")]


@contextmanager
def resume_hint(how: str) -> Generator[None]:
    """Print `how`, a hint on resuming, if Ctrl-C or a `CloudError` ends the block; re-raise it."""
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
    """Add a progress bar and return a function that advances it by one step.

    `total` is the expected number of steps; the returned function may be called with a new total.
    """
    bar = progress.add_task(name, total=total)

    def done(total: int | None = None) -> None:
        progress.update(bar, total=total)
        progress.advance(bar)

    return done


def without_cloud(chosen: Settings) -> Settings:
    """Return the settings with no cloud model, for commands that ask none."""
    of_urls = {"cloud_tokenizer": None, "cloud_model": None}
    return replace(chosen, cloud="none", cloud_engine=AUTO, **of_urls)


def pace_named(name: str | None, chosen: Settings) -> Pace:
    """Return the speed to which the edge model is slowed down.

    `name` is "0.5b" (a model of half a billion parameters; the default for the bundled edge model),
    "none" (not slowed down), or the address of a model, whose speed is measured here.
    """
    name = name or ("0.5b" if chosen.edge == "bundled" else "none")
    if name == "0.5b":
        return HALF_BILLION
    if name == "none":
        return UNPACED
    with closing(open_edge(Settings(edge=name, ctx=512, threads=chosen.threads))) as model:
        return measured(model)


@contextmanager
def served(chosen: Settings) -> Generator[str]:
    """Yield the URL of the cloud model. A gateway serves the bundled one during the `with` block.

    Raises `UsageError` if the settings name several clouds, a cloud at a host that they do not
    allow, or a cloud without a URL.
    """
    require_one_cloud(chosen)
    address = cloud_address(chosen)
    if address == "bundled":
        from edgewise_lab.bench.link import gateway_process

        with gateway_process(address) as url:
            yield url
    elif address.startswith("http"):
        require_allowed(address, hosts_of(chosen.cloud_hosts))
        yield address
    else:
        raise UsageError(
            f"A link needs a cloud at its other end, and {address!r} is not a URL; give --cloud "
            "http://host:port, or bundled."
        )


def connected_cloud(settings: Settings, edge: EdgeModel) -> CloudModel:
    """Open the settings' cloud model (not "none"), in an adapter if its vocabulary differs."""
    cloud = open_cloud(settings, edge)
    assert cloud is not None
    return cloud


def require_writing(cloud: CloudModel, what: str) -> None:
    """Raise `UsageError` if the cloud only reads passages; `what` (words) needs it to write."""
    if cloud.reads_passages:
        raise UsageError(
            f"{cloud.name!r} reads passages and writes no tokens, as {what} needs",
            hint="name a cloud that continues text",
            setting="cloud",
        )


def figures_tables(title: str, table: Sequence[Row], main: str | None = None) -> None:
    """Print tables of every system's accuracy, by lenient and strict grading, and of its costs.

    If `table` has differences of accuracy, they are to the system named `main`.
    """
    figures = [row.overall for row in table]
    right = _accuracies(f"{title} (95% intervals)", figures, main)
    render.show(drawn(right, _left_to_read(figures[0])))
    if len(table[0].families) > 1:
        render.show(drawn(_by_family(table)))
    render.show(drawn(_costs(figures), _COSTS))


def drawn(table: FigureTable, caption: str | None = None) -> Table:
    """Return the table as one that rich can print, with the text `caption` below it."""
    padding = (0, 0, 0, 1)
    title = printable(table.title) or None
    found = Table(title=title, box=SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
    for number, name in enumerate(table.head):
        found.add_column(printable(name), justify="right" if number else "left", overflow="fold")
    for cells in table.lines:
        found.add_row(*cells)
    found.caption = caption
    return found


def _accuracies(title: str, table: Sequence[Figures], main: str | None) -> FigureTable:
    columns: dict[str, Callable[[Figures], str]] = {
        "system": _named,
        "cloud\nshare": lambda one: f"{one.cloud_share:.1%}",
        "right": lambda one: _with_ends(one.accuracy, one.interval),
        f"less\n{main}": lambda one: _in_points(one.difference, one.difference_interval),
        "gap\nrecovered": _gap,
        "strictly\nright": lambda one: f"{one.strict_accuracy:.0%}",
        "cut": lambda one: f"{one.cut:.0%}",
    }
    # If no prompt asks for a format, nothing is strictly right.
    if not any(one.strict_accuracy for one in table):
        del columns["strictly\nright"]
    if not any(one.cut for one in table):
        del columns["cut"]
    return _table(title, columns, table)


def _table(
    title: str, columns: Mapping[str, Callable[[Figures], str]], table: Sequence[Figures]
) -> FigureTable:
    """Return a table without the columns that are empty for all systems."""
    cells = {head: [cell(one) for one in table] for head, cell in columns.items()}
    told = {head: column for head, column in cells.items() if any(column)}
    return FigureTable(title, list(told), [list(line) for line in zip(*told.values(), strict=True)])


def _gap(one: Figures) -> str:
    bare = one.system in (report.EDGE.system, report.CLOUD.system)
    return "" if bare else gap(one.gap_recovered, one.gap_interval)


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


def _left_to_read(figures: Figures) -> str | None:
    if not figures.to_read:
        return None
    return f"{figures.to_read} of {figures.questions} replies are to be read: they are not counted."


def _named(figures: Figures) -> str:
    return system_named(figures.system, figures.cloud_share_asked)


def system_named(system: str, share: float | None) -> str:
    """Return the printable name of a system at a cloud share, such as "pair at 5%"."""
    return printable(system) + ("" if share is None else f" at {share:.0%}")


def gap(recovered: float | None, interval: Interval | None) -> str:
    """Return the recovered fraction of the edge-cloud accuracy gap as text: "40% (12 to 65)".

    The 95% interval is in parentheses. Without a fraction or an interval the text is "no gap".
    """
    if recovered is None or interval is None:
        return "no gap"
    return _with_ends(recovered, interval)


def _with_ends(value: float, interval: Interval) -> str:
    """Return a rate and its interval as text; an infinite end (too few questions) is left out."""
    low, high = (f"{100 * end:.0f}" if math.isfinite(end) else "" for end in interval)
    if low and high:
        ends = f"{low} to {high}"
    elif low or high:
        ends = f"{low} or more" if low else f"{high} or less"
    else:
        ends = "unsure"
    return f"{value:.0%} ({ends})"
