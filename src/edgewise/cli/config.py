"""`edgewise config`: which settings are in force and where they come from; edit `edgewise.toml`."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise import settings
from edgewise.cli import options, render
from edgewise.errors import EdgewiseError, UsageError
from edgewise.parts import require_usable
from edgewise.settings import FILE, NAMES, Settings, spelled, variable

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

app = typer.Typer(
    invoke_without_command=True, help="Show the settings in force; edit edgewise.toml."
)

Key = Annotated[str, typer.Argument(help="A setting, as in edgewise.toml: cloud-share.")]

_DEFAULT = "default"


class SettingInForce(msgspec.Struct, frozen=True, rename={"place": "from"}):
    """A setting as commands without flags have it; of a secret only whether there is one."""

    name: str
    value: object
    place: str


@app.callback()
def config(context: typer.Context, json: options.Json = False) -> None:
    """Show every setting in force, and where it comes from: a flag beats them all."""
    if context.invoked_subcommand is not None:
        return
    found = _in_force()
    if json:
        print(msgspec.json.encode(found).decode())
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("setting", "value", "from"):
        table.add_column(name, overflow="fold")
    for one in found:
        shown = "-" if one.value is None else msgspec.json.encode(one.value).decode()
        style = "dim" if one.place == _DEFAULT else None
        table.add_row(one.name, render.printable(shown), one.place, style=style)
    render.show(table)
    render.note(f"{FILE} is looked for in {Path().absolute()}")


@app.command()
def path() -> None:
    """Print where the file of settings is, or would be."""
    place = Path(FILE).absolute()
    print(place)
    if not place.is_file():
        render.note("there is no such file yet; config set makes it")


@app.command("set")
def set_value(
    key: Key, value: Annotated[str, typer.Argument(help="Its value, as a flag takes it.")]
) -> None:
    """Set KEY in edgewise.toml, whose comments stay; refused is what a command would refuse."""
    name = _known(key)
    alone = settings.settings_of({name: value})
    try:
        require_usable(alone)
    except EdgewiseError as error:
        error.setting = None  # neither a flag nor a variable holds the value
        raise
    found = getattr(alone, name)
    if found is None:
        raise UsageError(f"{value!r} sets nothing; edgewise config unset {spelled(name)} does that")
    document = _document()
    written = [one for one in document if _plain(one) == name]
    for one in written[1:]:
        document.remove(one)
    document[written[0] if written else spelled(name)] = found
    _write(document)
    render.note(f"set {spelled(name)} in {Path(FILE).absolute()}")


@app.command()
def unset(key: Key) -> None:
    """Take KEY out of edgewise.toml, so that its default holds."""
    document = _document()
    written = [one for one in document if _plain(one) == _plain(key)]
    if not written:
        _known(key)
        raise UsageError(f"{FILE} has no {spelled(key)}; edgewise config shows what is set where")
    for one in written:
        document.remove(one)
    _write(document, vet=False)


def _in_force() -> list[SettingInForce]:
    """In the order of their fields. Raises `UsageError` for a source that commands refuse."""
    places: dict[str, str] = {}

    def noted(chosen: Settings, found: Mapping[str, str]) -> None:
        places.update(found)
        options.vetted(chosen, found)

    chosen = settings.load({}, vet=noted)
    return [
        SettingInForce(
            spelled(name),
            "(set)" if name == "cloud_key" and name in places else getattr(chosen, name),
            _told(name, places.get(name, _DEFAULT)),
        )
        for name in NAMES
    ]


def _told(name: str, place: str) -> str:
    return variable(name) if place == settings.ENVIRONMENT else place


def _plain(key: str) -> str:
    return key.replace("-", "_")


def _known(key: str) -> str:
    """The field's name. Raises `UsageError` where there is none."""
    settings.require_known(_plain(key), f"There is no setting {key!r}", spelled)
    return _plain(key)


def _document() -> "TOMLDocument":
    """The file as it is, comments and all; empty where there is none. Raises `UsageError`."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    data = settings.own_bytes(Path(FILE))
    try:
        return tomlkit.parse(data) if data else tomlkit.document()
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise UsageError(f"{FILE} is not valid TOML: {error}.") from error


def _write(document: "TOMLDocument", *, vet: bool = True) -> None:
    """Put the file in its place as a whole, if commands would take it. Raises `UsageError`."""
    text = document.as_string()
    if vet:
        with TemporaryDirectory() as folder:
            (Path(folder) / FILE).write_text(text, encoding="utf-8")
            settings.load({}, environment={}, folder=Path(folder), vet=options.vetted)
    _replace(Path(FILE).resolve(), text.encode())


def _replace(place: Path, content: bytes) -> None:
    """Whole or not at all; a new file is for its owner's eyes only, since a key may stand in it.

    Another keeps its mode. Raises `UsageError`.
    """
    try:
        descriptor, name = mkstemp(prefix=f".{place.name}.", dir=place.parent)
        scratch = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            if place.exists():
                shutil.copymode(place, scratch)
            scratch.replace(place)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{FILE} cannot be written: {error.strerror}.") from error
