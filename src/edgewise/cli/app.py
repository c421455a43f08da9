"""The command line: a table of commands, each imported only when it is called.

An error is printed as one sentence, with exit code 2. Packages add commands by entry points of the
group `edgewise.commands`: a function with Typer's annotations, or a `typer.Typer` of several.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points, version
from io import TextIOWrapper
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from edgewise.errors import EdgewiseError, UsageError
from edgewise.registry import Registry, attribute

# Help line of each built-in command; the module `edgewise.cli.NAME` defines it as NAME.
_BUILT_IN = {
    "run": "Answer one prompt.",
    "chat": "Talk to the pair in the terminal.",
    "serve": "Serve OpenAI's API and a chat page.",
    "doctor": "Check the models, the cloud and their speed.",
    "config": "Show the settings in force.",
    "models": "List and download models.",
    "gateway": "Serve many devices in front of your engines.",
    "keys": "Add, list and revoke keys of clients.",
}

# Help line of each command that the package `edgewise_lab` adds.
_LABORATORY = {
    "demo": "Compare edge, pair and cloud on held-out questions.",
    "try": "Answer your prompts by edge, pair and cloud.",
    "eval": "Measure what a router buys on a task.",
    "train": "Train a router for a pair of models.",
    "tune": "Set thresholds for a pair, without training.",
    "router": "Show a router's checkpoint.",
    "bench": "Measure speed and compare systems.",
}

# Commands that users know from other programs, and what to use here instead.
_ELSEWHERE = {
    "list": "models list",
    "ps": "doctor, which says what a command would load; nothing stays loaded behind one",
    "pull": "models pull MODEL",
}

_ADDED: Registry[Any] = Registry("command", "edgewise.commands", {})


class _Commands(Mapping[str, Any]):
    """Commands by name; each is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if name in _BUILT_IN:
            return _command(name, attribute(f"edgewise.cli.{name}:{name}"))
        if name in _ADDED:
            return _command(name, _ADDED.load(name))
        if name in _ELSEWHERE:
            raise UsageError(
                f"There is no command {name!r}", hint=f"it is edgewise {_ELSEWHERE[name]}"
            )
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter((*_BUILT_IN, *_ADDED.names()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Named:
    """A command with our own help line for --help."""

    def get_help_option(self, ctx: Any) -> Any:
        # Click would name the flags in any order.
        def record(_: Any) -> tuple[str, str]:
            return "-h, --help", "Show this; --help-all shows all options."

        option = cast(Any, super()).get_help_option(ctx)
        option.get_help_record = record
        return option


class _Group(_Named, TyperGroup):
    """The top-level command."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # From tables: Click would import each command to ask for its help line.
        rows = [*_BUILT_IN.items()]
        for point in entry_points(group=_ADDED.group):
            package = point.dist.name if point.dist else point.module
            rows.append((point.name, _LABORATORY.get(point.name, f"Of the package {package}.")))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class _Options(_Named, TyperCommand):
    """A command whose help groups its options; `--help-all` shows the rare ones as well."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in _HEADINGS}
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if record is not None:
                heading = getattr(one, "rich_help_panel", None) or "Options"
                if one.param_type_name == "argument":
                    heading = "Arguments"
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class _Several(_Named, TyperGroup):
    """A command with subcommands, such as `edgewise keys`."""


_HEADINGS = ["Arguments", "Options", "Models", "Routing", "Writing", "Privacy", "Money", "Output"]


def _command(name: str, target: Any) -> Any:
    """Return the Click command of a function or of a `typer.Typer`."""
    holder = typer.Typer(rich_markup_mode=None)
    # With a callback Typer makes a group of even one command, from which that one is taken.
    holder.callback()(lambda: None)
    if isinstance(target, typer.Typer):
        for one in target.registered_commands:
            one.cls = _Options
        holder.add_typer(target, name=name, cls=_Several)
    else:
        holder.command(name, cls=_Options)(target)
    group = get_command(holder)
    assert isinstance(group, TyperGroup)
    return group.commands[name]


app = typer.Typer(
    cls=_Group,
    name="edgewise",
    help="A small model on your device; a large one gets a word in edgewise.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help", "--help-all"]},
    # Help is plain text, and a bug's traceback is for an issue as it is.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"edgewise {version('edgewise')}")
        raise typer.Exit


@app.callback()
def _main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run() -> int:
    """Run the command that `sys.argv` names; print any error; return the exit code."""
    _open_streams()
    given = sys.argv[1:]
    try:
        # As git, docker and cargo have it.
        given = [*given[1:], "--help"] if given[:1] == ["help"] else given
        # Else Click would print errors in its own words, and exit.
        code = app(given, prog_name="edgewise", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        # As shells have it for a program that SIGINT ended.
        code = 130
    except typer.Exit as stop:
        code = stop.exit_code
    except typer.TyperException as error:
        message = error.format_message()
        if "\n" in message:  # The help of a command that was given nothing.
            print(message, file=sys.stderr)
        else:
            _complain(_with_quotes(message))
        code = 2
    except EdgewiseError as error:
        _complain(str(error))
        code = 2
    # Who read the output has left, such as `head`.
    except BrokenPipeError:
        code = _silenced()
    except OSError as error:
        _complain(f"Reading or writing failed: {error.strerror or error}.")
        code = _silenced()
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """Open the standard streams that the parent closed."""
    # Else another file takes their numbers, and what is printed goes into it.
    while (last := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(last)
    # A file of their own: what a library opened while it was imported may have their number.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, f"__{name}__") is None:
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(null, mode, closefd=False))
    # Names and answers have letters that other encodings have not.
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")


def _complain(message: str) -> None:
    from edgewise.cli.render import printable

    sentence = printable(" ".join(message.split()))
    end = "" if sentence.endswith((".", "?")) else "."
    print(f"edgewise: {sentence}{end}", file=sys.stderr)


def _with_quotes(message: str) -> str:
    """Add a hint if the shell split an unquoted prompt into several arguments."""
    unquoted = sys.argv[1:2] == ["run"] and message.startswith("Got unexpected extra argument")
    return message.rstrip(".") + "; put the prompt in quotes" if unquoted else message


def _silenced() -> int:
    """Return exit code 1, and drop what stdout still holds."""
    # Python flushes it at exit, which would fail, too.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
