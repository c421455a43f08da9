"""`edgewise config`: shows each setting's value, and where it comes from."""

from pathlib import Path
from typing import get_args

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise import settings
from edgewise.cli import options, render
from edgewise.settings import ENVIRONMENT, FIELDS, FILE, NAMES, spelled, variable


def config(json: options.Json = False) -> None:
    """Show every setting in force, and where it comes from; a command's flag overrides it."""
    chosen, places = settings.load({})
    options.vetted(chosen, places)
    rows: list[dict[str, object]] = []
    for name in NAMES:
        place = places.get(name, "default")
        # Of a secret only whether there is one.
        value = "(set)" if name in options.KEYS and name in places else getattr(chosen, name)
        source = variable(name) if place == ENVIRONMENT else place
        # What no value means, as the flag's help says it.
        usual = get_args(FIELDS[name].type)[1].description.partition("default: ")[2].rstrip(".")
        rows.append({"name": spelled(name), "value": value, "from": source, "default": usual})
    if json:
        print(msgspec.json.encode(rows).decode())
        return
    table = Table("setting", "value", "from", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        value, style = row["value"], "dim" if row["from"] == "default" else None
        shown = row["default"] or "-" if value is None else msgspec.json.encode(value).decode()
        table.add_row(str(row["name"]), render.printable(str(shown)), str(row["from"]), style=style)
    render.show(table)
    file = Path(FILE).absolute()
    render.note(f"settings are read from {file}{'' if file.exists() else ', which is not there'}")
