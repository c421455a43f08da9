"""`edgewise keys`: add, list and revoke the keys of a gateway or a server."""

import re
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise.cli import render
from edgewise.errors import UsageError
from edgewise.keys.keys import Key, add_key, read_keys, revoke_key

keys = typer.Typer(
    no_args_is_help=True,
    help="Add, list and revoke keys. To replace one, add a second and revoke the first.",
)

File = Annotated[Path, typer.Option("--keys", help="Key file.")]
Name = Annotated[str, typer.Argument(help="Name of the key.")]
Limits = Annotated[
    str | None,
    typer.Option(
        help="Where key usage is stored: file, redis://... or memory; default: beside --keys."
    ),
]

_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


@keys.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name of the key, shown in metrics and logs.")],
    file: File,
    consults_per_second: Annotated[
        float, typer.Option(help="Consults (gateway) or requests (serve) per second; 0: no limit.")
    ] = 50.0,
    ids_per_second: Annotated[
        float, typer.Option(help="Token ids per second, sent or computed; 0: no limit.")
    ] = 20_000.0,
    tokens_per_day: Annotated[int, typer.Option(help="Cloud tokens per UTC day; 0: no limit.")] = 0,
    sessions: Annotated[
        int,
        typer.Option(
            help="Sessions (gateway) or answers (serve) at once, per process; 0: no limit."
        ),
    ] = 16,
    expires: Annotated[
        str | None, typer.Option(help="Last valid day (2027-01-31, UTC), or a duration (90d, 12h).")
    ] = None,
) -> None:
    """Make a key, print it once, keep its hash."""
    secret = add_key(
        file,
        name,
        consults_per_second=consults_per_second,
        ids_per_second=ids_per_second,
        tokens_per_day=tokens_per_day,
        sessions=sessions,
        expires=None if expires is None else _end(expires),
    )
    print(secret)
    render.note(
        "A device sets it as EDGEWISE_CLOUD_KEY, a client of serve as its API key; it cannot be "
        "shown again."
    )


@keys.command("list")
def list_keys(file: File) -> None:
    """Show names, limits and dates, never the keys."""
    columns = ("name", "created", "expires", "consults/s", "ids/s", "tokens/day", "sessions")
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    now = datetime.now(UTC)
    for key in read_keys(file):
        limits = (key.consults_per_second, key.ids_per_second, key.tokens_per_day, key.sessions)
        shown = (f"{limit:,.10g}" if limit else "no limit" for limit in limits)
        table.add_row(render.printable(key.name), key.created, _expiry(key, now), *shown)
    render.show(table)


@keys.command()
def revoke(name: Name, file: File) -> None:
    """Stop a key from working, within a second, in open sessions and answers too."""
    revoke_key(file, name)


def _expiry(key: Key, now: datetime) -> str:
    if key.expires is None:
        return "never"
    return f"{key.expires.astimezone(UTC):%Y-%m-%d %H:%M}" + " (over)" * key.expired(now)


def _end(given: str) -> datetime:
    """Return when a key expires: the end of a day, or a duration from now. Raises `UsageError`."""
    try:
        last = date.fromisoformat(given)
        # The day that is named is valid to its end.
        return datetime.combine(last + timedelta(days=1), time(), UTC)
    except (ValueError, OverflowError):
        pass
    parts = re.fullmatch(r"([0-9]{1,6})([dhm])", given)
    if parts is None:
        raise UsageError(
            f"--expires {given!r} is not valid; give a day such as 2027-01-31, or a duration such "
            "as 90d or 12h."
        )
    return datetime.now(UTC) + timedelta(**{_UNITS[parts[2]]: int(parts[1])})
