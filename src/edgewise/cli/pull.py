"""`edgewise pull`: download a model."""

from typing import Annotated

import typer

from edgewise.addresses import engine_at, from_home, hub_address, is_url, resolve, resolve_folder
from edgewise.cli import render
from edgewise.edge.named import files_read
from edgewise.errors import UsageError


def pull(
    model: Annotated[str, typer.Argument(help="owner/repo, owner/repo:Q4_K_M or hf://....")],
) -> None:
    """Download MODEL, as a command does that names it, and print its path."""
    if hub_address(model) is None or from_home(model).exists():
        where = "an engine's address" if is_url(model) else "not a hub repository"
        raise UsageError(f"{model!r} is {where}, so there is nothing to download.")
    engine = engine_at(model)
    reads = files_read(engine)
    path = resolve_folder(model, engine, reads)[0] if reads else resolve(model, "edge")
    render.out.print(str(path))
    render.note(f"use it with --edge {model}; hf cache lists and removes what was downloaded")
