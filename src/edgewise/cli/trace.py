"""`edgewise trace`: where an answer's time went."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise.cli import options, render
from edgewise.errors import UsageError
from edgewise.traces.timeline import Timeline, chrome_trace, read, timeline

app = typer.Typer(help="Look at the timeline of an answer.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `show` a subcommand."""


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A trace, made by edgewise run --trace FILE.")],
    out: Annotated[
        Path | None, typer.Option(help="Chrome/Perfetto trace; default: FILE with .chrome.json.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Print a summary of FILE and write a trace for Chrome's or Perfetto's viewer."""
    records = read(file)
    found = timeline(records)
    path = out or file.with_suffix(".chrome.json")
    if path.exists() and path.samefile(file):
        raise UsageError(f"{str(path)!r} is the trace itself; name another file with --out.")
    try:
        path.write_bytes(msgspec.json.encode(chrome_trace(records)))
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
    if json:
        print(msgspec.json.encode(found).decode())
        return
    render.show(_table(found))
    render.note(f"{path}: open it in ui.perfetto.dev or chrome://tracing")


def _table(found: Timeline) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, text in _lines(found):
        table.add_row(name, text)
    return table


def _lines(found: Timeline) -> list[tuple[str, str]]:
    def part(seconds: float) -> str:
        return f"{seconds:.3f} s ({seconds / found.total:.0%})"

    gaps = " / ".join(f"{1000 * gap:.1f}" for gap in found.gaps)
    consult = "-" if found.consult_median is None else f"{1000 * found.consult_median:.0f} ms"
    completions = f"{found.confirmed} / {found.changed} / {found.failed} / {found.cancelled}"
    return [
        ("tokens (by the cloud)", f"{found.tokens} ({found.cloud_tokens})"),
        ("cloud share (wasted)", f"{found.cloud_share:.1%} ({found.wasted_tokens})"),
        ("time", f"{found.total:.3f} s"),
        ("time to first token", f"{1000 * found.ttft:.0f} ms"),
        ("p50, p95, p99, longest gap, ms", gaps),
        ("decodes, a token", f"{found.decodes}, {found.decodes_per_token:.2f}"),
        ("decodes thrown away", f"{found.thrown_away}"),
        ("consults", f"{found.consults}"),
        ("confirmed / changed / failed / cancelled", completions),
        ("consult, median", consult),
        ("edge model, kept", part(found.edge_kept)),
        ("edge model, thrown away", part(found.edge_thrown_away)),
        ("waiting for the cloud", part(found.waiting)),
        ("everything else", part(found.rest)),
    ]
