"""Options come from `Settings`, and what a command cannot honour it refuses."""

from collections.abc import Callable, Iterator
from pathlib import Path
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
from tests.cli.conftest import Edgewise

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


@pytest.mark.parametrize(
    ("name", "command"), [*commands()], ids=lambda v: v if type(v) is str else ""
)
def test_every_option_says_what_it_is(name: str, command: Any) -> None:
    given = [one for one in command.params if isinstance(one, TyperOption)]
    assert all(one.help for one in given)
    # Of a Python list its reader knows nothing.
    assert all(one.metavar or not one.multiple for one in given)
    for one in given:
        if one.name in NAMES and one.help.startswith(HELP[one.name]):
            assert one.opts == [f"--{one.name.replace('_', '-')}"]
            assert (one.default, one.required) == (None, False)


def test_every_setting_says_what_it_is() -> None:
    assert set(HELP) == set(NAMES)
    assert all(said.endswith(".") for said in HELP.values())
    assert not any("--" in said for said in HELP.values())


@pytest.mark.parametrize(
    ("command", "line", "name"),
    [
        (("train", "pocketqa", "--out", "x"), "redact = 'on'", "redact"),
        (("bench", "link"), "span = 4", "span"),
        (("run", "Hello", "--edge", "no.gguf"), "spam = 1", "spam"),
        (("gateway", "--port", "0"), "spam = 1", "spam"),
    ],
)
def test_what_a_command_cannot_honour_it_refuses(
    edgewise: Edgewise, tmp_path: Path, command: tuple[str, ...], line: str, name: str
) -> None:
    (tmp_path / "edgewise.toml").write_text(f"{line}\n")
    said = edgewise.refusal(*command)
    assert name in said
    assert "edgewise.toml" in said


def test_what_cannot_matter_to_a_command_it_takes(edgewise: Edgewise, tmp_path: Path) -> None:
    (tmp_path / "edgewise.toml").write_text("cloud = 'http://127.0.0.1:9'\nspan = 3\n")
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


def test_a_command_is_handed_settings_and_its_own_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, ran = an_app(takes("threads", "gpu_layers", "on_cloud_error", reads=["span", "edge"]))
    call(command, "me", "--threads", "2", "--gpu-layers", "7", "--context", "5")
    call(command, "me", "--span", "4", "--span", "5", "--on-cloud-error", "raise")
    assert ran == [
        (Settings(threads=2, gpu_layers=7), {"name": "me", "span": None, "context": 5}),
        (Settings(span=4, on_cloud_error="raise"), {"name": "me", "span": [4, 5], "context": 3}),
    ]
    (tmp_path / "edgewise.toml").write_text("span = 3\nedge = 'a.gguf'\nthreads = 1\n")
    call(command, "me", "--threads", "2")
    assert ran[-1][0] == Settings(span=3, edge="a.gguf", threads=2)
    assert command.help == "What the command does."
    assert [one.name for one in command.params][:5] == [
        *("name", "threads", "gpu_layers", "on_cloud_error", "span")
    ]


def test_an_option_of_the_commands_own_is_not_the_setting_unless_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, ran = an_app(takes(unaffected=["span"]))
    call(command, "me", "--span", "9")
    assert ran[0][0] == Settings()
    (tmp_path / "edgewise.toml").write_text("threads = 2\n")
    with pytest.raises(UsageError, match=r"threads in edgewise\.toml"):
        call(command, "me")
    monkeypatch.setenv("EDGEWISE_SEED", "3")
    with pytest.raises(UsageError, match=r"EDGEWISE_SEED .* and threads|threads .* EDGEWISE_SEED"):
        call(command, "me")
    monkeypatch.delenv("EDGEWISE_SEED")
    # A default that is written down is not a wish.
    (tmp_path / "edgewise.toml").write_text("temperature = 0\nspeculate = 16\n")
    call(command, "me")


@pytest.mark.parametrize(
    ("clouds", "keys"),
    [
        (["https://api.openai.com/v1", "http://localhost:8080"], ["sk-theirs", None]),
        (["http://localhost:8080", "gpt-5-mini"], [None, "sk-theirs"]),
        (["claude-haiku-4-5", "gpt-5-mini"], [None, "sk-theirs"]),
        (["gpt-5-mini"], ["sk-theirs"]),
        (["http://localhost:8080", "http://localhost:8081"], [None, None]),
    ],
)
def test_each_of_several_clouds_has_its_own_providers_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clouds: list[str], keys: list[str | None]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-theirs")
    command, ran = an_app(takes("cloud", reads=["cloud_key"]))
    call(command, "me", *(part for one in clouds for part in ("--cloud", one)))
    assert [one.cloud_key for one in each_cloud(ran[0][0])] == keys


def test_a_command_without_a_cloud_has_no_providers_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway sends its key to its engines, wherever a cloud for other commands may be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-theirs")
    monkeypatch.setenv("EDGEWISE_CLOUD", "gpt-5-mini")
    command, ran = an_app(takes(reads=["cloud_key"], unaffected=NAMES))
    call(command, "me")
    assert ran[0][0].cloud_key is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UsageError("No room", hint="lower it", setting="ctx"), "No room; lower it (--ctx)."),
        (UsageError("No room.", setting="ctx"), "No room (--ctx)."),
        (UsageError("No", hint="set it", setting="cloud_key"), "No; set it (EDGEWISE_CLOUD_KEY)."),
        (UsageError("No", hint="drop it", setting="figure"), "No; drop it (--plot)."),
        (UsageError("No", hint="drop it", setting="router"), "No; drop it."),
        (UsageError("No", hint="drop it", setting="elsewhere"), "No; drop it."),
        (UsageError("No", hint="drop it"), "No; drop it."),
        (UsageError("ctx must be 8 or more.", setting="ctx"), "ctx must be 8 or more."),
        (UsageError("No", hint="drop --ctx", setting="ctx"), "No; drop --ctx."),
        (
            UsageError("No", hint="set EDGEWISE_CLOUD_KEY", setting="cloud_key"),
            "No; set EDGEWISE_CLOUD_KEY.",
        ),
    ],
)
def test_an_error_is_told_in_the_commands_words(error: UsageError, said: str) -> None:
    own = typer.Typer(add_completion=False, rich_markup_mode=None)

    @own.command()
    @takes("ctx", unaffected=["router"])
    def draw(
        router: str, chosen: Settings, figure: Annotated[str | None, typer.Option("--plot")] = None
    ) -> None:
        raise error

    with pytest.raises(UsageError) as caught:
        call(get_command(own), "a")
    assert str(caught.value) == said
