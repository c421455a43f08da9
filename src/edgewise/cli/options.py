"""The commands' options that stand for settings, and which command honours which setting."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin

import typer

from edgewise import settings
from edgewise.addresses import each, is_url, with_scheme
from edgewise.cli import render
from edgewise.errors import EdgewiseError, UsageError, VocabularyMismatch
from edgewise.settings import FIELDS, NAMES, Settings, names_in

WRITING, OUTPUT = "Writing", "Output"
"""Headings of the help that options of a command's own stand under."""

System = Annotated[
    str | None, typer.Option(metavar="TEXT", help="System message.", rich_help_panel=WRITING)
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.", rich_help_panel=OUTPUT)]

Stats = Annotated[
    bool, typer.Option("--stats", help="Say all that was counted.", rich_help_panel=OUTPUT)
]

SentFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write each message to the cloud there first.",
        rich_help_panel="Privacy",
    ),
]


def share(text: str) -> float:
    """A share as it is written on the command line: 0.05, or 5%."""
    try:
        return settings.fraction(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a share; give a fraction such as 0.05, or 5%"
        ) from None


def share_option(about: str) -> Any:
    """An option of a command's own whose values are shares."""
    return typer.Option(parser=share, metavar="SHARE", help=about)


Names = tuple[str, ...]
Command = Callable[..., None]

EDGE = tuple(name for name in names_in("models") if name != "cloud")
CONNECTING = names_in("connection")
ONE_VOCABULARY = names_in("models", "connection")
MODELS = (*ONE_VOCABULARY, *names_in("tokenizer"))
PRIVACY = names_in("privacy")
POLICY = names_in("policy")
DRAWS = names_in("draws")
MACHINE = names_in("machine")
COSTS = names_in("costs")
KEYS = names_in("key")
ANSWERING = tuple(name for name in NAMES if name not in KEYS)
"""Of a command that answers: all but the keys, which are no flags."""

SettingsWith = Callable[[Path], Settings]
"""The command's settings with those of one more file."""

ALL = "--help-all"
"""Shows the options that are rarely needed, too."""

_PANELS = {
    **dict.fromkeys(("models", "connection", "tokenizer", "machine"), "Models"),
    **dict.fromkeys(("routing", "policy"), "Routing"),
    **dict.fromkeys(("sampling", "draws"), "Writing"),
    "tiers": "Routing",
    "privacy": "Privacy",
    "costs": "Money",
}
"""Where the help shows the settings of a group."""

_CHOSEN, _CHOSEN_WITH, _CONTEXT = "chosen", "chosen_with", "_context"


def takes(
    *options: str, reads: Sequence[str] = (), unaffected: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """Give a command these settings as options, in place of its parameter `chosen: Settings`.

    The command gets the settings of all sources, merged. A parameter `chosen_with: SettingsWith`
    adds a file to them. `reads` come from the environment and the file only, or from a parameter of
    the command with that name, whose first value beats the other sources. `unaffected` do not
    matter to the command. It refuses an environment or a file that sets any other setting.
    """
    refused = frozenset(NAMES) - {*options, *reads, *unaffected}

    def vet(chosen: Settings, places: Mapping[str, str]) -> None:
        honoured = {*options, *reads, *KEYS}
        vetted(chosen, {name: where for name, where in places.items() if name in honoured})

    def decorate(command: Command) -> Command:
        own = inspect.signature(command).parameters
        added = [_option(name) for name in options]
        asked = next((name for name, one in own.items() if one.annotation is typer.Context), None)
        if asked is None:
            added.append(_keyword(_CONTEXT, typer.Context))

        @wraps(command)
        def settled(**values: Any) -> None:
            context = values[asked] if asked else values.pop(_CONTEXT)
            flags = {name: _joined(values.pop(name)) for name in options}
            flags |= {name: _first(values[name]) for name in reads if name in own}
            load = partial(
                settings.load, flags, refused=refused, reader=context.command_path, vet=vet
            )

            def with_file(file: Path) -> Settings:
                return load(file=file)

            if _CHOSEN_WITH in own:
                values[_CHOSEN_WITH] = with_file
            try:
                command(**values, chosen=load())
            except VocabularyMismatch as error:
                if error.setting in refused:
                    # The hint names a setting that this command refuses.
                    error.hint, error.setting = "choose two models of one family", "cloud"
                raise

        # What Typer reads; without it `wraps` would show it the command's own.
        shown = [
            parameter
            for name, one in own.items()
            if name != _CHOSEN_WITH
            for parameter in (added if name == _CHOSEN else [_keyword(name, one.annotation, one)])
        ]
        del settled.__dict__["__wrapped__"]
        settled.__dict__["__signature__"] = inspect.Signature(shown)
        settled.__annotations__ = {one.name: one.annotation for one in shown}
        return settled

    return decorate


def everything_but(*names: str) -> Names:
    """The other settings."""
    return tuple(name for name in NAMES if name not in names)


class Parameter(Protocol):
    """What Typer makes of a command's parameter."""

    name: str
    opts: list[str]


def sentence_of(error: EdgewiseError, parameters: Iterable[Parameter]) -> str:
    """An error, with the flag or variable of the setting that it is about."""
    return error.sentence(_reached(error, parameters))


def fix(error: EdgewiseError, parameters: Iterable[Parameter]) -> str | None:
    """The error's hint, with that flag or variable; None if it has no hint."""
    where = _reached(error, parameters)
    return error.hint and error.hint + (f" ({where})" if where else "")


def vetted(chosen: Settings, places: Mapping[str, str]) -> None:
    """Refuse what a file of settings may not do; `places` says where each setting was given.

    A file runs no code. A cloud, or an edge model's server, that it names gets no key but the
    file's own, and stderr names it. Raises `UsageError`.
    """
    named = (settings.ENVIRONMENT, settings.FLAGS)
    of_file = {name: where for name, where in places.items() if where not in named}
    if "router" in of_file and chosen.router:
        from edgewise.routers.named import runs_code

        if runs_code(chosen.router):
            raise UsageError(
                f"router in {of_file['router']} runs code, which a file may not",
                hint="name it with --router or EDGEWISE_ROUTER",
            )
    if "trust" in of_file:
        raise UsageError(
            f"trust in {of_file['trust']} says who sees what is local, which a file may not",
            hint="name it with --trust or EDGEWISE_TRUST",
        )
    clouds = [("cloud", address) for address in each(chosen.cloud or "")]
    for role, address in (*clouds, ("edge", chosen.edge)):
        if not is_url(url := with_scheme(address)):
            continue
        from edgewise.engines.http import require_keyless

        require_keyless(url)
        if role in of_file:
            key = f"{role}_key"
            _require_own_key(role, address, of_file[role], places.get(key), key)
            called = "cloud" if role == "cloud" else "edge model's server"
            render.note(f"{of_file[role]} names the {called}: {address}")


def _require_own_key(role: str, address: str, file: str, of_key: str | None, key: str) -> None:
    """Raise `UsageError` if another source's key would go where a file says."""
    if of_key is not None and of_key != file:
        raise UsageError(
            f"{file} names the {role} {address!r}, and a file may not say where the "
            f"{settings.spelled(key)} of {of_key} goes",
            hint=f"name the {role} with --{role} or {settings.variable(role)}, or put its own "
            f"{settings.spelled(key)} into that file",
        )


def _reached(error: EdgewiseError, parameters: Iterable[Parameter]) -> str | None:
    """The setting's flag, else its variable; None if the error names the setting itself."""
    setting = error.setting
    if setting is None or error.message.startswith(settings.spelled(setting)):
        return None
    where = settings.variable(setting) if setting in NAMES else None
    for one in parameters:
        if one.name == setting:
            where = one.opts[0] if one.opts[0].startswith("--") else None
    return None if where is None or where in str(error) else where


def _joined(given: object) -> object:
    """Of an option that may be repeated, as the settings have it."""
    return ",".join(map(str, given)) or None if isinstance(given, list) else given


def _first(given: object) -> object:
    return given[0] if isinstance(given, list) and given else given


def _keyword(
    name: str, annotation: object, like: inspect.Parameter | None = None
) -> inspect.Parameter:
    default = like.default if like else inspect.Parameter.empty
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _option(name: str) -> inspect.Parameter:
    """The option of a field: its help, and its type or nothing (not given)."""
    annotation, meta, *_ = get_args(FIELDS[name].type)
    union = get_origin(annotation) in (Union, UnionType)
    kinds = [k for k in (get_args(annotation) if union else (annotation,)) if k is not NoneType]
    # A choice between a word and a number comes as text, which `settings.load` converts; so does a
    # share, which may be in percent.
    kind: Any = kinds[0] if len(kinds) == 1 and name != "cloud_share" else str
    kind = list[str] if name == "cloud" else kind  # may be repeated
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind  # bounds are `load`'s
    extra = meta.extra
    panel = _PANELS[extra["group"]]
    option = typer.Option(
        None,
        help=meta.description,
        metavar=extra["metavar"],
        rich_help_panel=panel,
        hidden=extra["rare"] and ALL not in sys.argv,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None
    )
