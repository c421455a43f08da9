"""Commands that packages add by entry points of the group `edgewise.commands`.

An entry point's object is a function, as Typer takes it, or a Typer application. Edgewise's own
laboratory comes by the same door.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import typer

from edgewise.errors import UsageError

GROUP = "edgewise.commands"

_LABORATORY = {
    "bench": "edgewise_lab.commands.bench:app",
    "demo": "edgewise_lab.commands.demo:demo",
    "eval": "edgewise_lab.commands.eval:evaluate",
    "router": "edgewise_lab.commands.router:app",
    "train": "edgewise_lab.commands.train:train",
}
"""Where the metadata of an older installation do not name them."""


_ANY = {"allow_extra_args": True, "ignore_unknown_options": True}


def add_commands(app: typer.Typer) -> None:
    """Add every package's commands; one that cannot be loaded says so where it is called."""
    targets = {point.name: point.value for point in entry_points(group=GROUP)}
    if find_spec("edgewise_lab") is not None:
        targets = {**_LABORATORY, **targets}
    for name in sorted({*targets, *_LABORATORY}):
        try:
            command = _loaded(name, targets.get(name))
        except UsageError as error:
            app.command(name, context_settings=_ANY)(_refusing(error))
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)


def _loaded(name: str, target: str | None) -> Any:
    """The command itself. Raises `UsageError`."""
    if target is None:
        raise UsageError(
            f"edgewise {name} is not installed here", hint="pip install 'edgewise[lab]'"
        )
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        raise UsageError(
            f"edgewise {name} cannot be loaded from {target!r} ({type(error).__name__}: {error})",
            hint="repair or remove the package that adds it",
        ) from error


def _refusing(error: UsageError) -> Callable[[], None]:
    """A command that says what is wrong."""

    def refuse() -> None:
        raise error

    refuse.__doc__ = f"{error}"
    return refuse
