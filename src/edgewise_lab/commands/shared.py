"""What several commands share: options of tasks, the two ends of a benchmark, tables of figures."""

import math
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise.cli import render
from edgewise.cli.render import metered, printable
from edgewise.cloud.base import CloudModel
from edgewise.cloud.hosts import hosts_of, require_allowed
from edgewise.edge.base import EdgeModel
from edgewise.engines.registry import AUTO
from edgewise.errors import UsageError
from edgewise.parts import cloud_address, open_cloud, open_edge, require_one_cloud
from edgewise.settings import Settings
from edgewise_lab.bench.pace import HALF_BILLION, UNPACED, Pace, measured
from edgewise_lab.evaluation import report
from edgewise_lab.evaluation.report import Figures, Row
from edgewise_lab.evaluation.statistics import Interval
from edgewise_lab.evaluation.tasks.base import Grading

TaskName = Annotated[
    str,
    typer.Argument(
        help="pocketqa, commonsenseqa, gsm8k or a JSON Lines file, also of prompts alone or chats."
    ),
]
Data = Annotated[Path | None, typer.Option(help="Local copy of the task's published file.")]
Check = Annotated[
    Grading | None, typer.Option(help="How a JSON Lines file is graded; default exact.")
]
MaxTokens = Annotated[
    int | None, typer.Option(help="Longest answer, tokens; default: the task's own, 256 a file's.")
]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Only the first N questions.")]


@contextmanager
def going_on(how: str) -> Generator[None]:
    """On Ctrl-C say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        render.note(how)
        raise


def without_cloud(chosen: Settings) -> Settings:
    of_urls = {"cloud_tokenizer": None, "cloud_model": None}
    return replace(chosen, cloud="none", cloud_engine=AUTO, **of_urls)


def pace_named(name: str | None, chosen: Settings) -> Pace:
    """As asked; the bundled edge model is slowed down to a 0.5B where nothing was."""
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
            f"A link needs a cloud at its other end, and {address!r} is none; give --cloud "
            "http://host:port, or bundled."
        )


def connected_cloud(settings: Settings, edge: EdgeModel) -> CloudModel:
    """The cloud model that the settings name, its vocabulary proven."""
    cloud = open_cloud(settings, edge)
    assert cloud is not None
    return cloud


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
