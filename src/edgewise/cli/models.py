"""`edgewise models`: what is on this disk, what the hub has, what is not needed any more."""

import sys
from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table

from edgewise.addresses import (
    BESIDE,
    Part,
    bundled,
    engine_at,
    from_home,
    is_url,
    resolve,
    resolve_folder,
)
from edgewise.cli import options, render
from edgewise.edge.named import files_read
from edgewise.errors import UsageError
from edgewise.hub_client import hub_address
from edgewise.model_cache import CachedModel, cached_models, removal

app = typer.Typer(no_args_is_help=True, help="List, download and remove models.")

Address = Annotated[str, typer.Argument(help="owner/repo, owner/repo:Q4_K_M or hf://....")]

_SHIPPED: dict[str, Part] = {"bundled": "edge", "bundled (cloud)": "cloud", **BESIDE}


@app.command("list")
def list_models(json: options.Json = False) -> None:
    """Models that ship with Edgewise, and those that were downloaded: address, size, place."""
    found = [*_shipped(), *cached_models()]
    if json:
        print(msgspec.json.encode(found).decode())
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("last used", no_wrap=True)
    table.add_column("where", overflow="fold")
    for one in found:
        used = f"{datetime.fromtimestamp(one.used):%Y-%m-%d}" if one.used else ""
        address, place = render.printable(one.address), render.printable(one.path)
        table.add_row(address, decimal(one.size), used, place)
    render.show(table)


@app.command()
def pull(model: Address) -> None:
    """Download MODEL as a command would that names it, with a progress bar."""
    if hub_address(model) is None or from_home(model).exists():
        where = "an engine's address" if is_url(model) else "no hub repository"
        raise UsageError(f"{model!r} is {where}, so there is nothing to download.")
    engine = engine_at(model)
    reads = files_read(engine)
    path = resolve_folder(model, engine, reads)[0] if reads else resolve(model, "edge")
    render.out.print(str(path))
    render.note(f"use it with --edge {model}")


@app.command()
def remove(
    model: Address,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Without being asked.")] = False,
) -> None:
    """Remove what was downloaded of MODEL: a file, a quantisation or a whole repository."""
    if model.partition(":")[0] == "bundled":
        raise UsageError(f"{model!r} is part of Edgewise and cannot be removed.")
    found = removal(model)
    what = f"{render.printable(model)}: {len(found.names)} files, {decimal(found.freed)}"
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"To remove {what} without being asked, say --yes.")
        if not typer.confirm(f"Remove {what}?"):
            render.note("nothing was removed")
            raise typer.Exit(1)
    found.execute()
    render.note(f"removed {what}")


def _shipped() -> list[CachedModel]:
    places = {name: bundled(part) for name, part in _SHIPPED.items()}
    return [
        CachedModel(address=name, size=path.stat().st_size, used=0.0, path=str(path))
        for name, path in places.items()
    ]
