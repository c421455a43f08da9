"""Command-line options that set settings, and which command honours which setting."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from msgspec.structs import replace
from typer.main import get_current_context  # pyright: ignore[reportPrivateImportUsage]

from edgewise import settings
from edgewise.addresses import each, is_url, with_scheme
from edgewise.cli import render
from edgewise.errors import EdgewiseError, UsageError, VocabularyMismatch
from edgewise.providers import api_url, provider_at
from edgewise.settings import FIELDS, NAMES, Settings, names_in

WRITING, OUTPUT = "Writing", "Output"
"""Headings in the help under which commands list options that are not settings."""

System = Annotated[
    str | None, typer.Option(metavar="TEXT", help="System message.", rich_help_panel=WRITING)
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.", rich_help_panel=OUTPUT)]

Stats = Annotated[
    bool, typer.Option("--stats", help="Print consults, tokens and speed.", rich_help_panel=OUTPUT)
]

SentFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Log each message here before it is sent.", rich_help_panel="Privacy"
    ),
]


def share_option(about: str) -> Any:
    """Return a Typer option for a cloud share, given as 5% or 0.05; `about` is its help text."""
    return typer.Option(parser=settings.fraction, metavar="SHARE", help=about)


Command = Callable[..., None]
"""A command function before Typer has made a command of it."""

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
"""Names of the settings of some groups (see `Settings`); commands combine them in `takes`."""

ANSWERING = tuple(name for name in NAMES if name not in KEYS)
"""Names of the settings of a command that answers prompts: all but the API keys (no flags)."""

ALL = "--help-all"
"""Flag that shows the help with the rarely needed options too."""

# Panel of the help that shows a group of settings.
_PANELS = {
    **dict.fromkeys(("models", "connection", "tokenizer", "machine"), "Models"),
    **dict.fromkeys(("routing", "policy"), "Routing"),
    **dict.fromkeys(("sampling", "draws"), "Writing"),
    "tiers": "Routing",
    "privacy": "Privacy",
    "costs": "Money",
}

_REPEATED = ("cloud",)

_CHOSEN = "chosen"
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes(
    *options: str, reads: Sequence[str] = (), unaffected: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command one option for each setting named in `options`.

    The options replace the command's parameter `chosen: Settings`, in which it gets the settings
    from flags, environment and settings file, merged. A setting in `reads` has no option here: it
    comes from the environment or the file, or from a parameter of that name that the command has
    itself (of a list, the first item). Settings in `unaffected` do not matter to the command. If
    the environment or the file sets any other setting, the command fails with `UsageError`.
    """
    honoured = {*options, *reads, *KEYS}
    refused = frozenset(NAMES) - {*options, *reads, *unaffected}

    def decorate(command: Command) -> Command:
        own = inspect.signature(command).parameters
        added = [_option(name) for name in options]

        @wraps(command)
        def settled(**values: Any) -> None:
            flags = {name: values.pop(name) for name in options}
            flags |= {name: _first(values[name]) for name in reads if name in own}
            try:
                chosen, places = settings.load(flags)
                command_path = get_current_context().command_path
                settings.require_honoured(chosen, places, refused, command_path)
                places = {name: places[name] for name in places if name in honoured}
                vetted(chosen := _with_provider_keys(chosen, places), places)
                command(**values, chosen=chosen)
            except EdgewiseError as error:
                if isinstance(error, VocabularyMismatch) and error.setting in refused:
                    # The hint names a setting that this command refuses.
                    error.hint, error.setting = "choose two models of one family", "cloud"
                locate(error)
                raise

        # What Typer reads; without it `wraps` would show it the command's own.
        shown = [
            parameter
            for name, one in own.items()
            for parameter in (added if name == _CHOSEN else [one.replace(kind=_KEYWORD)])
        ]
        del settled.__dict__["__wrapped__"]
        settled.__dict__["__signature__"] = inspect.Signature(shown)
        settled.__annotations__ = {one.name: one.annotation for one in shown}
        return settled

    return decorate


def flags_of(names: Sequence[str]) -> Settings:
    """Return `Settings` from the flags of the running command that are in `names`."""
    given = get_current_context().params
    return settings.settings_of({name: given[name] for name in names if given[name] is not None})


def locate(error: EdgewiseError) -> None:
    """Set `error.where` to how the user sets `error.setting`: a flag or an environment variable.

    It is the flag if the running command has one for the setting. Nothing is set if the error names
    no setting, or if its message tells this already.
    """
    setting = error.setting
    if setting is None or error.message.startswith(settings.spelled(setting)):
        return
    where = settings.variable(setting) if setting in NAMES else None
    for one in get_current_context().command.params:
        if one.name == setting:
            where = one.opts[0] if one.opts[0].startswith("--") else None
    error.where = None if where is None or where in str(error) else where


def vetted(chosen: Settings, places: Mapping[str, str]) -> None:
    """Raise `UsageError` if the settings file sets what a stranger's file must not decide.

    `places` maps the name of each given setting to `FLAGS`, `ENVIRONMENT` or the file's name. The
    file must not set `trust` or `edge_hosts`, nor a `router` that runs code. If it sets `edge` to a
    URL, this must lead to this machine, and no flag or variable may set `cloud_hosts`, `cloud` to
    "none", or `redact` to anything but "off". If an edge or cloud at a URL has an API key, the file
    must set both its address and its key, or neither. A note on stderr names the servers that the
    file sets. `UsageError` is raised, too, for any URL of a model that holds a user or password.
    """
    named = (settings.ENVIRONMENT, settings.FLAGS)
    of_file = {name: where for name, where in places.items() if where not in named}
    barred = {"trust": "it controls where local text may go", "edge_hosts": "it allows hosts"}
    if "router" in of_file and chosen.router:
        # Imported late, as below: most commands start without it.
        from edgewise.routers.named import runs_code

        if runs_code(chosen.router):
            barred["router"] = f"{chosen.router!r} would run code"
    if "edge" in of_file and is_url(url := with_scheme(chosen.edge)):
        from edgewise.cloud.hosts import is_here

        # The edge model's server sees every prompt as it is.
        keeps = {"redact": chosen.redact not in (None, "off"), "cloud": chosen.cloud == "none"}
        asked = [name for name in ("cloud_hosts", *keeps) if keeps.get(name, True)]
        private = [name for name in asked if name in places and name not in of_file]
        if private or not is_here(url):
            why = f"{settings.spelled(private[0])} is set" if private else "it is elsewhere"
            barred["edge"] = f"{chosen.edge!r} would get every prompt, and {why}"
    # A file in the folder may be a stranger's, who cloned a repository and ran a command there.
    for name in barred.keys() & of_file.keys():
        raise UsageError(
            f"{settings.spelled(name)} cannot be set in {of_file[name]} ({barred[name]})",
            hint=f"set it with --{settings.spelled(name)} or {settings.variable(name)}",
        )
    clouds = [("cloud", api_url(address)) for address in each(chosen.cloud or "")]
    for role, address in (*clouds, ("edge", chosen.edge)):
        if not is_url(url := with_scheme(address)):
            continue
        from edgewise.engines.connections import require_keyless

        require_keyless(url, role)
        key, flag = settings.spelled(f"{role}_key"), f"--{role}"
        whose = places.get(f"{role}_key", places.get(role))
        if whose != places.get(role) and {role, f"{role}_key"} & of_file.keys():
            raise UsageError(
                f"The {role} {address!r} comes from {places.get(role)}, but the {key} from "
                f"{whose}; a file's key is for its own host, and its host gets no other key",
                hint=f"set both with {flag} and {settings.variable(f'{role}_key')}, or both in "
                "the file",
            )
        if role in of_file:
            called = "cloud" if role == "cloud" else "edge server"
            render.note(f"{of_file[role]} sets the {called}: {address}")


def _with_provider_keys(chosen: Settings, places: Mapping[str, str]) -> Settings:
    """Return the settings with hosted providers' keys from the providers' own variables.

    Only if a flag or an environment variable names the clouds, and `cloud_key` is not set.
    """
    # The clouds of a file, which may be a stranger's, get no key but the file's own.
    if chosen.cloud_key is None and places.get("cloud", settings.FILE) != settings.FILE:
        found = [provider_at(api_url(address)) for address in each(chosen.cloud or "")]
        keys = [os.environ.get(one.key, "") if one else "" for one in found]
        return replace(chosen, cloud_key=",".join(keys) if any(keys) else None)
    return chosen


def _first(given: object) -> object:
    return given[0] if isinstance(given, list) and given else given


def _option(name: str) -> inspect.Parameter:
    """Return the option of a setting; its value is text."""
    _, meta, *_ = get_args(FIELDS[name].type)
    option = typer.Option(
        None,
        help=meta.description,
        metavar=meta.extra["metavar"],
        rich_help_panel=_PANELS[meta.extra["group"]],
        # Options are made before any is parsed, so the command line itself is looked at.
        hidden=meta.extra["rare"] and ALL not in sys.argv,
    )
    # As text: `settings.load` converts the values of flags, variables and the file alike.
    kind: Any = list[str] if name in _REPEATED else str
    return inspect.Parameter(name, _KEYWORD, default=option, annotation=kind | None)
