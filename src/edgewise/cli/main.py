"""The `edgewise` command: one file per subcommand, errors as one sentence and exit code 2."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_command

from edgewise.cli import config, gateway, models, options, render, trace
from edgewise.cli.added import add_commands
from edgewise.cli.chat import chat
from edgewise.cli.doctor import doctor
from edgewise.cli.keys import keys_app
from edgewise.cli.run import run
from edgewise.cli.sent import sent
from edgewise.cli.serve import serve
from edgewise.errors import EdgewiseError

app = typer.Typer(
    name="edgewise",
    help="A small model on your device; a large one gets a word in edgewise.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(chat)
app.command()(serve)
app.command()(doctor)
app.command()(sent)
app.add_typer(config.app, name="config")
app.add_typer(models.app, name="models")
app.add_typer(gateway.app, name="gateway")
app.add_typer(trace.app, name="trace")
app.add_typer(keys_app, name="keys")
add_commands(app)


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


def main() -> None:
    """Run the command line; never returns."""
    _open_streams()
    try:
        code = app(prog_name="edgewise", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
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
        _complain(options.told(error, _parameters(sys.argv[1:])))
        code = 2
    except KeyboardInterrupt:
        render.err.print()
        code = 130
    except BrokenPipeError:
        code = _silenced()
    except OSError as error:
        _complain(f"Reading or writing failed: {error.strerror or error}.")
        code = _silenced()
    sys.exit(code if isinstance(code, int) else 0)


def _open_streams() -> None:
    """Where the parent closed a standard stream, nothing else may be opened in its place."""
    while (last := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(last)
    # A file of their own: what a library opened while it was imported may have their number.
    if sys.__stdin__ is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), closefd=False)
    if sys.__stdout__ is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)
    if sys.__stderr__ is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)


def _parameters(arguments: Sequence[str]) -> Sequence[options.Parameter]:
    """Those of the command that these arguments name."""
    command = get_command(app)
    for name in arguments:
        if isinstance(command, TyperGroup) and name in command.commands:
            command = command.commands[name]
    return command.params


def _complain(message: str) -> None:
    sentence = render.printable(" ".join(message.split()))
    end = "" if sentence.endswith((".", "?")) else "."
    print(f"edgewise: {sentence}{end}", file=sys.stderr)


def _with_quotes(message: str) -> str:
    """What is missing where a shell made several words of a prompt."""
    unquoted = sys.argv[1:2] == ["run"] and message.startswith("Got unexpected extra argument")
    return message.rstrip(".") + "; put the prompt in quotes" if unquoted else message


def _silenced() -> int:
    """Exit code 1, and nothing more to stdout: the interpreter's own last flush would fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
