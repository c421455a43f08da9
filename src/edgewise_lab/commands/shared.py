"""Code shared by commands: task options, the two ends of a benchmark, tables of figures."""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from itertools import compress
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.progress import Progress
from rich.table import Table

from edgewise.cli import render
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
Workers = Annotated[int, typer.Option(min=1, max=64, help="Questions answered at a time.")]


@contextmanager
def resume_hint(how: str) -> Generator[None]:
    """On Ctrl-C, or where the cloud fails, prints how to resume."""
    try:
        yield
    except (KeyboardInterrupt, CloudError):
        render.note(how)
        raise


def tell_of_code(tasks: Iterable[Task]) -> None:
    """Says that replies are run here, if they are."""
    if any(question.check == "code" for task in tasks for question in task.questions):
        render.note(
            "The code in replies is run on this machine, each in a process of at most "
            f"{RUN_SECONDS:g} s and {RUN_MEMORY >> 20} MB; it is no jail (docs/evaluation.md)."
        )


def counted(progress: Progress, name: str, total: int | None = None) -> Callable[..., None]:
    """Shows a bar; a call is one step of it, of so many, about, if a number is given."""
    bar = progress.add_task(name, total=total)

    def done(total: int | None = None) -> None:
        progress.update(bar, total=total)
        progress.advance(bar)

    return done


def without_cloud(chosen: Settings) -> Settings:
    of_urls = {"cloud_tokenizer": None, "cloud_model": None}
    return replace(chosen, cloud="none", cloud_engine=AUTO, **of_urls)


def pace_named(name: str | None, chosen: Settings) -> Pace:
    """The named pace; by default the bundled edge model is slowed down to a 0.5B."""
    name = name or ("0.5b" if chosen.edge == "bundled" else "none")
    if name == "0.5b":
        return HALF_BILLION
    if name == "none":
        return UNPACED
    with closing(open_edge(Settings(edge=name, ctx=512, threads=chosen.threads))) as model:
        return measured(model)


@contextmanager
def served(chosen: Settings) -> Generator[str]:
    """The URL of the cloud model; the bundled one gets a gateway of its own."""
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
    """The cloud model that the settings name, its vocabulary checked."""
    cloud = open_cloud(settings, edge)
    assert cloud is not None
    return cloud


def figures_tables(title: str, table: Sequence[Row]) -> None:
    """Print what every system gets right by both readings, by family, and what it asks for."""
    figures = [row.overall for row in table]
    shown = _accuracies(f"{title} (95% intervals)", figures)
    render.show(drawn(shown, _left_to_read(figures[0])))
    if len(table[0].families) > 1:
        render.show(drawn(_by_family(table)))
    render.show(drawn(_costs(figures), _COSTS))


def drawn(table: FigureTable, caption: str | None = None) -> Table:
    """Renders the table with rich."""
    padding = (0, 0, 0, 1)
    title = printable(table.title) or None
    found = Table(title=title, box=SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
    for number, name in enumerate(table.head):
        found.add_column(printable(name), justify="right" if number else "left", overflow="fold")
    for cells in table.lines:
        found.add_row(*cells)
    found.caption = caption
    return found


def _accuracies(title: str, table: Sequence[Figures]) -> FigureTable:
    gap_name = "gap\nrecovered"
    lines: list[list[str]] = []
    for one in table:
        bare = one.system in (report.EDGE.system, report.CLOUD.system)
        lines.append(
            [
                _named(one),
                f"{one.cloud_share:.1%}",
                _with_ends(one.accuracy, one.interval),
                "" if bare else gap(one.gap_recovered, one.gap_interval),
                f"{one.strict_accuracy:.0%}",
                f"{one.cut:.0%}",
            ]
        )
    head = ["system", "cloud\nshare", "right", gap_name, "strictly\nright", "cut"]
    # A prompt that asks for no format gets answers in none.
    said = [any(one.strict_accuracy for one in table), any(one.cut for one in table)]
    told = [True] * (len(head) - len(said)) + said
    chosen = [[*compress(cells, told)] for cells in (head, *lines)]
    return FigureTable(title, chosen[0], chosen[1:])


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
    """Means an answer; an engine may bill all of it."""
    head = ["system", "calls", "prompt\ncomputed", "prompt\ncached", "written", "wasted"]
    lines = [
        [
            _named(one),
            f"{one.cloud_calls / one.questions:.1f}",
            metered(one.prompt_computed and one.prompt_computed / one.questions, ".1f"),
            metered(one.prompt_cached and one.prompt_cached / one.questions, ".1f"),
            f"{(one.cloud_tokens + one.wasted_tokens) / one.questions:.1f}",
            f"{one.wasted_tokens / one.questions:.1f}",
            metered(one.cloud_work, ".0%"),
        ]
        for one in table
        if one.cloud_calls
    ]
    return FigureTable("Asked of the cloud, tokens an answer", [*head, "cloud\nwork"], lines)


def _left_to_read(figures: Figures) -> str | None:
    if not figures.to_read:
        return None
    return f"{figures.to_read} of {figures.questions} replies are to be read: they are not counted."


def _named(figures: Figures) -> str:
    asked = "" if figures.cloud_share_asked is None else f" at {figures.cloud_share_asked:.0%}"
    return printable(figures.system) + asked


def gap(recovered: float | None, interval: Interval | None) -> str:
    """The gap recovered and its interval."""
    if recovered is None or interval is None:
        return "no gap"
    return _with_ends(recovered, interval)


def _with_ends(value: float, interval: Interval) -> str:
    """A rate and its interval; too few questions leave an end of it open."""
    low, high = (f"{100 * end:.0f}" if math.isfinite(end) else "" for end in interval)
    if low and high:
        ends = f"{low} to {high}"
    elif low or high:
        ends = f"{low} or more" if low else f"{high} or less"
    else:
        ends = "unsure"
    return f"{value:.0%} ({ends})"
