"""The reference, made from the code each time: nothing of it is kept, so nothing grows old."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec
import typer
from typer.cli import get_docs_for_click
from typer.core import TyperGroup
from typer.main import get_command

import edgewise
from edgewise import settings
from edgewise.cli.app import app
from edgewise.errors import Fault
from edgewise.events import Reason
from edgewise.settings import Settings
from website.openapi import server


def commands() -> str:
    """Every command's `--help`, as Typer's own generator writes it."""
    command = get_command(app)
    context = typer.Context(command, info_name="edgewise")
    return get_docs_for_click(obj=command, ctx=context, name="edgewise", title="Commands")


def configuration() -> str:
    """Every setting: its names, its default, which commands have it as a flag."""
    flags = _flags()
    return _SETTINGS + "".join(
        _SETTING.format(
            name=settings.spelled(field.name),
            description=_description(field.type),
            variable=settings.variable(field.name),
            default=_default(field.default),
            flag="A flag of " + ", ".join(sorted(found))
            if (found := flags.get(field.name))
            else "No flag",
        )
        for field in msgspec.structs.fields(Settings)
    )


def python() -> str:
    """What the package exports; the pages' builder fills it from the docstrings."""
    names = [f"::: edgewise.{name}" for name in edgewise.__all__]
    return "\n\n".join(["# Python", "What `import edgewise` gives.", *names, ""])


def errors() -> str:
    """The error tree, and the reasons that tokens carry."""
    reasons = f"| {_listed(get_args(Reason))} | {_listed(get_args(Fault))} |"
    return _ERRORS.format(reasons=reasons)


REFERENCE: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "settings.md": configuration,
    "python.md": python,
    "server.md": server,
    "errors.md": errors,
}
"""Pages by their file's name."""

_SETTINGS = """# Settings

A flag beats the environment, which beats `edgewise.toml` in the working folder. In the file a
setting is written as its heading here; its flag is that name behind `--`, and `Pair` takes it as a
keyword, with underscores. A command refuses what it cannot honour.
"""

_SETTING = """
## `{name}`

{description}

`{variable}`; {default}. {flag}.
"""

_ERRORS = """# Errors and reasons

## Reasons

Why a token was written by whom: `reason` of a `Token`, and in replies with provenance.
[The life of a token](../life-of-a-token.md#reasons) says what each means.

| no consult failed | a consult failed |
|---|---|
{reasons}

## Errors

The command line ends with [exit code](../exit-codes.md) 2 for each of them; the server answers a
`UsageError` with 400, and a `CloudError` that was to end the answer with 502.

::: edgewise.errors
"""


def _flags() -> dict[str, set[str]]:
    """Each setting that is a flag, and of which commands."""
    found: dict[str, set[str]] = {}
    for name, command in _commands(get_command(app)):
        for parameter in command.params:
            if parameter.opts[0].startswith("--"):
                found.setdefault(parameter.name, set()).add(f"`{name}`")
    return found


def _commands(command: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(command, TyperGroup):
        yield prefix, command
        return
    for name, inner in command.commands.items():
        yield from _commands(inner, f"{prefix} {name}".strip())


def _description(annotation: Any) -> str:
    return next(one.description for one in get_args(annotation) if hasattr(one, "description"))


def _default(value: object) -> str:
    if value is None:
        return "no default"
    shown = {True: "on", False: "off"}[value] if isinstance(value, bool) else f"`{value}`"
    return f"default {shown}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
