"""`edgewise config`: which settings are in force, and where they come from."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise import settings
from edgewise.cli import options, render
from edgewise.settings import FILE, NAMES, Settings, spelled, variable

_DEFAULT = "default"


class SettingInForce(msgspec.Struct, frozen=True, rename={"place": "from"}):
    """A setting as commands without flags have it; of a secret only whether there is one."""

    name: str
    value: object
    place: str


def config(json: options.Json = False) -> None:
    """Show every setting in force, and where it comes from: a flag beats them all."""
    rows = _in_force()
    if json:
        print(msgspec.json.encode(rows).decode())
        return
    table = Table("setting", "value", "from", box=SIMPLE_HEAD, pad_edge=False)
    for one in rows:
        shown = "-" if one.value is None else msgspec.json.encode(one.value).decode()
        style = "dim" if one.place == _DEFAULT else None
        table.add_row(one.name, render.printable(shown), one.place, style=style)
    render.show(table)
    render.note(f"settings are read from {Path(FILE).absolute()}")


def _in_force() -> list[SettingInForce]:
    """In the order of their fields. Raises `UsageError` for a source that commands refuse."""
    places: dict[str, str] = {}

    def vet(chosen: Settings, sources: Mapping[str, str]) -> None:
        places.update(sources)
        options.vetted(chosen, sources)

    chosen = settings.load({}, vet=vet)
    environment = {name for name, place in places.items() if place == settings.ENVIRONMENT}
    places |= {name: variable(name) for name in environment}
    return [
        SettingInForce(
            spelled(name),
            "(set)" if name in options.KEYS and name in places else getattr(chosen, name),
            places.get(name, _DEFAULT),
        )
        for name in NAMES
    ]
