"""`edgewise models`: lists the models on this disk, and downloads others."""

from collections import Counter
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table

from edgewise.addresses import bundled, from_home, hub_address, is_url, resolve, resolve_folder
from edgewise.cli import options, render
from edgewise.edge.named import engine_at, files_read
from edgewise.errors import UsageError
from edgewise.hub.disk import DiskModel, disk_models, vocabulary_of
from edgewise.hub.known import KNOWN, like

# Most models whose vocabularies are compared: a large one takes a tenth of a second.
_MOST_COMPARED = 200

models = typer.Typer(no_args_is_help=True, help="List and download models.")


@models.command("list")
def list_models(json: options.Json = False) -> None:
    """List short names, and the models on this disk: also Ollama's, LM Studio's, llama.cpp's."""
    from edgewise.hub.client import cached_repositories

    shipped = {"bundled": bundled("edge"), "bundled (cloud)": bundled("cloud")}
    held = [DiskModel("Edgewise", name, p.stat().st_size, p) for name, p in shipped.items()]
    others = disk_models()
    for name, known in KNOWN.items():
        held += [DiskModel("Edgewise", name, known.size, at) for at, _ in like(known, others)][:1]
    missing = KNOWN.keys() - {one.address for one in held}
    held += [*cached_repositories(), *others]
    tokens = [vocabulary_of(one.path) for one in held[:_MOST_COMPARED]]
    tokens += [None] * (len(held) - len(tokens))
    if json:
        rows = zip(held, tokens, strict=True)
        listed = [{**m._asdict(), "path": str(m.path), "vocabulary": of} for m, of in rows]
        print(msgspec.json.encode(listed).decode())
        return
    shared = [of for of, count in Counter(filter(None, tokens)).items() if count > 1]
    numbers = {of: f"{number}" for number, of in enumerate(shared, 1)}
    table = Table("model", "size", "vocabulary", "where", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    for one, of in zip(held, tokens, strict=True):
        address, place = render.printable(one.address), render.printable(str(one.path))
        table.add_row(address, decimal(one.size), numbers.get(of or "", ""), place)
    for name in sorted(missing):
        ways = (KNOWN[name].how_to_get, f"edgewise models pull {name}")
        table.add_row(
            name, decimal(KNOWN[name].size), "", "not here: " + " or ".join(filter(None, ways))
        )
    render.show(table)
    render.note("models with the same vocabulary number share token ids; hf cache rm removes one")


@models.command()
def pull(
    model: Annotated[
        str, typer.Argument(help="smollm2, owner/repo, owner/repo:Q4_K_M or hf://....")
    ],
) -> None:
    """Download MODEL now, as a command that names it would."""
    if model.lower() not in KNOWN and (hub_address(model) is None or from_home(model).exists()):
        where = "an engine's address" if is_url(model) else "not a hub repository"
        raise UsageError(f"{model!r} is {where}, so there is nothing to download.")
    reads = files_read(engine_at(model))
    path = resolve_folder(model, reads)[0] if reads else resolve(model, "edge")
    render.out.print(str(path))
    render.note(f"use it with --edge {model}")
