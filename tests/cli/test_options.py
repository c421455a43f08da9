"""Options come from `Settings`; what a command cannot honour it refuses; `config` tells all."""

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
import pytest
import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from edgewise.cli.app import app
from edgewise.cli.options import takes
from edgewise.errors import UsageError
from edgewise.opening import each_cloud
from edgewise.settings import NAMES, Settings
from tests.cli.conftest import Edgewise, sentence

HELP = {
    field.name: field.type.__metadata__[0].description for field in msgspec.structs.fields(Settings)
}


def commands(command: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, by what is typed."""
    command = command or get_command(app)
    if not isinstance(command, TyperGroup):
        yield path, command
    else:
        for name, one in command.commands.items():
            yield from commands(one, f"{path} {name}".strip())


def test_every_option_and_every_setting_says_what_it_is() -> None:
    assert set(HELP) == set(NAMES)
    for name, said in HELP.items():
        assert said.endswith("."), name
        assert "--" not in said, name
    for command, params in ((path, found.params) for path, found in commands()):
        for one in (param for param in params if isinstance(param, TyperOption)):
            said = f"{command} {one.name}"
            assert one.help, said
            # Of a Python list its reader knows nothing.
            assert one.metavar or not one.multiple, said
            if one.name in NAMES and one.help.startswith(HELP[one.name]):
                assert one.opts == [f"--{one.name.replace('_', '-')}"], said
                assert (one.default, one.required) == (None, False), said


@pytest.mark.parametrize(
    ("command", "line", "name"),
    [
        ("train pocketqa --out x", "redact = 'on'", "redact"),
        ("bench link", "span = 4", "span"),
        ("run Hello --edge no.gguf", "spam = 1", "spam"),
        ("gateway --port 0", "spam = 1", "spam"),
    ],
)
def test_no_such_setting_is_taken(edgewise: Edgewise, command: str, line: str, name: str) -> None:
    edgewise.configure(line)
    said = edgewise.refusal(*command.split())
    assert name in said
    assert "edgewise.toml" in said
    # What cannot matter to a command it takes.
    edgewise.configure("cloud = 'http://127.0.0.1:9'\nspan = 3")
    assert "--engine" in edgewise.refusal("gateway", "--port", "8400")


Ran = list[tuple[Settings, dict[str, object]]]


def an_app(decorate: Callable[[Callable[..., None]], Callable[..., None]]) -> tuple[Any, Ran]:
    """A command of its own under `decorate`, and what it was called with."""
    ran: Ran = []
    own = typer.Typer(add_completion=False, rich_markup_mode=None)

    @own.command()
    @decorate
    def copy(
        name: str,
        chosen: Settings,
        span: Annotated[list[int] | None, typer.Option(help="Several.")] = None,
        context: Annotated[int, typer.Option(help="No setting, and not Typer's.")] = 3,
    ) -> None:
        """What the command does."""
        ran.append((chosen, {"name": name, "span": span, "context": context}))

    return get_command(own), ran


def call(command: Any, *arguments: str) -> None:
    command(list(arguments), prog_name="copy", standalone_mode=False)


def test_a_command_is_handed_settings_and_its_own_parameters(edgewise: Edgewise) -> None:
    command, ran = an_app(takes("threads", "gpu_layers", "on_cloud_error", reads=["span", "edge"]))
    call(command, "me", "--threads", "2", "--gpu-layers", "7", "--context", "5")
    call(command, "me", "--span", "4", "--span", "5", "--on-cloud-error", "raise")
    assert ran == [
        (Settings(threads=2, gpu_layers=7), {"name": "me", "span": None, "context": 5}),
        (Settings(span=4, on_cloud_error="raise"), {"name": "me", "span": [4, 5], "context": 3}),
    ]
    edgewise.configure("span = 3\nedge = 'a.gguf'\nthreads = 1")
    call(command, "me", "--threads", "2")
    assert ran[-1][0] == Settings(span=3, edge="a.gguf", threads=2)
    assert command.help == "What the command does."
    assert [one.name for one in command.params][:5] == [
        *("name", "threads", "gpu_layers", "on_cloud_error", "span")
    ]


def test_an_option_of_the_commands_own_is_not_the_setting(edgewise: Edgewise) -> None:
    command, ran = an_app(takes(unaffected=["span"]))
    call(command, "me", "--span", "9")
    assert ran[0][0] == Settings()
    edgewise.configure("threads = 2")
    with pytest.raises(UsageError, match=r"threads in edgewise\.toml"):
        call(command, "me")
    edgewise.setenv(EDGEWISE_SEED="3")
    with pytest.raises(UsageError, match=r"EDGEWISE_SEED .* and threads|threads .* EDGEWISE_SEED"):
        call(command, "me")
    edgewise.setenv(EDGEWISE_SEED="")
    # A default that is written down is not a wish.
    edgewise.configure("temperature = 0\nspeculate = 16")
    call(command, "me")


@pytest.mark.parametrize(
    ("clouds", "keys"),
    [
        ("https://api.openai.com/v1 http://localhost:8080", ["sk-theirs", None]),
        ("http://localhost:8080 gpt-5-mini", [None, "sk-theirs"]),
        ("claude-haiku-4-5 gpt-5-mini", [None, "sk-theirs"]),
        ("gpt-5-mini", ["sk-theirs"]),
        ("http://localhost:8080 http://localhost:8081", [None, None]),
    ],
)
def test_each_cloud_has_its_own_key(
    edgewise: Edgewise, clouds: str, keys: list[str | None]
) -> None:
    edgewise.setenv(OPENAI_API_KEY="sk-theirs")
    command, ran = an_app(takes("cloud", reads=["cloud_key"]))
    call(command, "me", *(part for one in clouds.split() for part in ("--cloud", one)))
    assert [one.cloud_key for one in each_cloud(ran[0][0])] == keys


def test_a_command_without_a_cloud_has_no_providers_key(edgewise: Edgewise) -> None:
    """A gateway sends its key to its engines, wherever a cloud for other commands may be."""
    edgewise.setenv(OPENAI_API_KEY="sk-theirs", EDGEWISE_CLOUD="gpt-5-mini")
    command, ran = an_app(takes(reads=["cloud_key"], unaffected=NAMES))
    call(command, "me")
    assert ran[0][0].cloud_key is None


@pytest.mark.parametrize(
    ("message", "hint", "setting", "said"),
    [
        ("No room", "lower it", "ctx", "No room; lower it (--ctx)."),
        ("No room.", None, "ctx", "No room (--ctx)."),
        ("No", "set it", "cloud_key", "No; set it (EDGEWISE_CLOUD_KEY)."),
        ("No", "drop it", "figure", "No; drop it (--plot)."),
        ("No", "drop it", "router", "No; drop it."),
        ("No", "drop it", "elsewhere", "No; drop it."),
        ("No", "drop it", None, "No; drop it."),
        ("ctx must be 8 or more.", None, "ctx", "ctx must be 8 or more."),
        ("No", "drop --ctx", "ctx", "No; drop --ctx."),
        ("No", "set EDGEWISE_CLOUD_KEY", "cloud_key", "No; set EDGEWISE_CLOUD_KEY."),
    ],
)
def test_how_an_error_is_told(
    message: str, hint: str | None, setting: str | None, said: str
) -> None:
    own = typer.Typer(add_completion=False, rich_markup_mode=None)

    @own.command()
    @takes("ctx", unaffected=["router"])
    def draw(
        router: str, chosen: Settings, figure: Annotated[str | None, typer.Option("--plot")] = None
    ) -> None:
        raise UsageError(message, hint=hint, setting=setting)

    with pytest.raises(UsageError) as caught:
        call(get_command(own), "a")
    assert str(caught.value) == said


def test_every_setting_is_told_with_where_it_comes_from(edgewise: Edgewise) -> None:
    edgewise.configure("cloud-share = 0.1  # a tenth\nthreads = 2")
    edgewise.setenv(EDGEWISE_THREADS="1", EDGEWISE_CLOUD_KEY="sk-secret")
    told = edgewise.json("config")
    found = {one["name"]: (one["value"], one["from"]) for one in told}
    assert [name.replace("-", "_") for name in found] == list(NAMES)
    assert found["cloud-share"] == (0.1, "edgewise.toml")
    assert found["threads"] == (1, "EDGEWISE_THREADS")
    assert found["span"] == (Settings().span, "default")
    assert found["cloud-key"] == ("(set)", "EDGEWISE_CLOUD_KEY")
    shown = edgewise("config")
    assert "sk-secret" not in shown.out + json.dumps(found)
    assert "EDGEWISE_THREADS" in shown.out
    assert str(edgewise.folder) in shown.err
    usual = {one["name"]: one["default"] for one in told}
    assert usual["cloud-share"].startswith("10%")
    assert (usual["router"], usual["threshold"]) == ("auto", "")


@pytest.mark.parametrize("command", ["config", "doctor"])
@pytest.mark.parametrize("by_file", [False, True])
def test_a_key_in_an_address_is_not_shown(edgewise: Edgewise, command: str, by_file: bool) -> None:
    if by_file:
        edgewise.configure('cloud = "https://me:sk-secret@host"')
    else:
        edgewise.setenv(EDGEWISE_CLOUD="https://me:sk-secret@host")
    result = edgewise(command, code=2)
    assert "holds a key" in sentence(result)
    assert "sk-secret" not in result.err
