"""Options come from `Settings`, and what a command cannot honour it refuses."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from edgewise.cli import options
from edgewise.cli.main import app
from edgewise.cli.options import takes
from edgewise.errors import UsageError
from edgewise.settings import NAMES, Settings
from tests.cli.conftest import Edgewise

HELP = {
    field.name: field.type.__metadata__[0].description for field in msgspec.structs.fields(Settings)
}
CONNECTING = {"cloud_engine", "cloud_hosts", "cloud_model", "cloud_key_env"}
ONE_VOCABULARY = {"edge", "edge_engine", "cloud"} | CONNECTING
MODELS = ONE_VOCABULARY | {"cloud_tokenizer"}
VIEW = {"cloud_context", "redact", "redact_words"}
SAMPLING = {"max_tokens", "temperature", "top_k", "top_p", "min_p", "seed"}
MACHINE = {"ctx", "threads", "gpu_layers", "swa_full"}
COSTS = {"price", "max_cost", "max_cost_day", "allow_dearer"}
ANSWERING = (
    MODELS
    | VIEW
    | {"router", "cloud_share", "threshold", "max_cloud_tokens", "span"}
    | {"run_ahead", "redraft", "deadline", "on_cloud_error", "push"}
    | SAMPLING
    | MACHINE
    | COSTS
    | {"sent_counts"}
)
FLAGS: dict[str, set[str]] = {
    "run": ANSWERING | {"system"},
    "chat": ANSWERING | {"system"},
    "serve": ANSWERING | {"slots", "api_key"},
    "sent": set(),
    "doctor": MODELS
    | VIEW
    | {"router", "cloud_share", "price", "threads", "gpu_layers", "swa_full"},
    "eval": MODELS | VIEW | MACHINE | {"deadline"},
    "train": ONE_VOCABULARY | MACHINE | {"seed"},
    "demo": set(),
    "config": set(),
    "config path": set(),
    "config set": set(),
    "config unset": set(),
    "models list": set(),
    "models pull": set(),
    "models remove": set(),
    "router show": set(),
    "router check": {"edge", "edge_engine", "threads"},
    "router push": set(),
    "gateway": {"cloud_model", "cloud_key_env"},
    "keys add": set(),
    "keys list": set(),
    "gateway keys": set(),
    "keys revoke": set(),
    "bench edge": {"edge", "edge_engine", "router", "threads", "gpu_layers", "swa_full"},
    "bench energy": ANSWERING - SAMPLING - COSTS - {"sent_counts"},
    "bench frontier": ONE_VOCABULARY | {"run_ahead", "ctx", "threads"},
    "bench link": ONE_VOCABULARY | {"router", "run_ahead", "redraft", "ctx", "threads"},
    "bench paper": {"edge", "edge_engine", "cloud", "threads", "gpu_layers"}
    | (CONNECTING - {"cloud_engine"}),
    "trace show": set(),
}
"""The options of each command that stand for settings in the usual form."""

OWN = {
    # The length of a task's answers is the task's own, and not that of a run.
    "eval": {"router", "cloud_share", "max_tokens"},
    "demo": {"cloud_share"},
    "bench frontier": {"router", "cloud_share", "max_tokens"},
    "bench link": {"cloud_share"},
    "bench paper": {"cloud_share"},
    # The number of log-probs that a router reads, which is not the sampling's.
    "train": {"top_k", "max_tokens"},
}
"""Options with a setting's name and words of their own."""

GREEDY_TASK = {"max_cloud_tokens", "span", "max_tokens", "temperature", "system"}
REFUSED: dict[str, set[str]] = {
    "serve": {"system"},  # clients send their own
    "eval": GREEDY_TASK | COSTS | {"threshold", "push"},
    "train": GREEDY_TASK | COSTS | VIEW | {"deadline", "cloud_tokenizer"},
    "demo": GREEDY_TASK
    # Always the bundled pair, which has no sliding windows.
    | {"threshold", "edge", "edge_engine", "cloud", "router", "swa_full"},
    "bench edge": {"temperature"},
    "bench energy": {"max_tokens", "temperature", "system"} | COSTS,
    "bench frontier": GREEDY_TASK
    | COSTS
    | VIEW
    | {"threshold", "deadline", "cloud_tokenizer", "redraft"},
    "bench link": GREEDY_TASK
    | COSTS
    | VIEW
    | {"threshold", "deadline", "on_cloud_error", "cloud_tokenizer", "push"},
    "bench paper": {
        "cloud_engine",
        "cloud_tokenizer",
        "threshold",
        "max_cloud_tokens",
        "span",
        "run_ahead",
        "redraft",
    }
    | COSTS
    | VIEW
    | {"deadline", "on_cloud_error", "temperature"},
}
"""What a command cannot honour; everything else it honours, or it cannot matter to it."""

KEYS = {"keys add", "keys list", "keys revoke", "gateway keys"}
NO_SETTINGS = {
    *("sent", "router show", "router push", "trace show"),
    # They look at the file itself, or at no settings.
    *("config path", "config set", "config unset", "models list", "models pull", "models remove"),
    *KEYS,
}
"""Commands that read no file of settings."""

ENDS_EARLY: dict[str, tuple[tuple[str, ...], str]] = {
    "run": (("Hello", "--edge", "no.gguf"), "no file 'no.gguf'"),
    "chat": (("--edge", "no.gguf"), "no file 'no.gguf'"),
    "serve": (("--port", "0", "--edge", "no.gguf"), "no file 'no.gguf'"),
    "sent": (("--limit", "3"), "sent.jsonl"),
    "doctor": (("--edge", "no.gguf"), "no file 'no.gguf'"),
    "eval": (("pocketqa", "--limit", "0"), "limit must be"),
    "train": (("pocketqa", "--out", "r", "--stage", "collect", "--limit", "0"), "limit must be"),
    "demo": (("--questions", "0"), "--questions must be"),
    "config": ((), "edgewise.toml"),
    "config path": ((), "edgewise.toml"),
    "config set": (("spam", "1"), "no setting 'spam'"),
    "config unset": (("spam",), "no setting 'spam'"),
    "models list": ((), "bundled:mid"),
    "models pull": (("bundled",), "no hub repository"),
    "models remove": (("bundled",), "cannot be removed"),
    "router show": (("./none",), "no checkpoint"),
    "router check": (("./none",), "no checkpoint"),
    "router push": (("./none", "me/router"), "no checkpoint"),
    "gateway": (("--port", "8400"), "needs an engine"),
    "keys add": (("me", "--keys", "no/keys.json"), "keys.json"),
    "keys list": (("--keys", "keys.json"), "keys.json"),
    "gateway keys": (("add", "me"), "edgewise keys"),
    "keys revoke": (("me", "--keys", "keys.json"), "'me'"),
    "bench edge": (("--blocks", "2"), "at least 5 blocks"),
    "bench energy": (("no-task",), "no task 'no-task'"),
    "bench link": (("--round-trip", "-1"), "round trip must be"),
    "bench frontier": (("--plot", "no/f.png"), "no such folder"),
    "bench paper": ((), "asks an engine"),
    "trace show": (("none.jsonl",), "none.jsonl"),
}
"""Arguments that end each command after its settings were read, and what it then says."""

VALUES: dict[str, object] = {
    "edge": "small.gguf",
    "edge_engine": "llamacpp",
    "cloud": "none",
    "cloud_key": "sk-1",
    "cloud_key_env": "PROVIDER_KEY",
    "cloud_model": "large",
    "cloud_engine": "vllm",
    "cloud_tokenizer": "other.gguf",
    "cloud_hosts": "127.0.0.1, host.example:8080",
    "cloud_context": "6",
    "redact": "email,secret=local",
    "redact_words": "Anna Smith",
    "push": "never",
    "router": "entropy",
    "cloud_share": 0.1,
    "threshold": 0.5,
    "max_cloud_tokens": 3,
    "span": 2,
    "run_ahead": 4,
    "redraft": "never",
    "deadline": 1.0,
    "on_cloud_error": "raise",
    "max_tokens": 20,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.1,
    "seed": 3,
    "system": "Be brief.",
    "ctx": 512,
    "threads": 1,
    "gpu_layers": 0,
    "swa_full": False,
    "sent_counts": False,
    "price": "1,0.1,4",
    "max_cost": 0.5,
    "max_cost_day": 2.0,
    "allow_dearer": True,
    "slots": 2,
    "api_key": "sk-2",
}


def commands(command: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, by what is typed."""
    command = command or get_command(app)
    if not isinstance(command, TyperGroup) or path in ("gateway", "config"):
        yield path, command
    if isinstance(command, TyperGroup):
        for name, one in command.commands.items():
            yield from commands(one, f"{path} {name}".strip())


def toml(values: dict[str, object]) -> str:
    lines = (f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in values.items())
    return "".join(lines)


def test_the_tables_are_complete() -> None:
    known = {name for name, _ in commands()}
    assert known == set(FLAGS) == set(ENDS_EARLY)
    assert set(REFUSED) <= known
    assert set(VALUES) == set(NAMES)
    assert all(VALUES[name] != getattr(Settings(), name) for name in NAMES)


@pytest.mark.parametrize(
    ("name", "command"), [*commands()], ids=lambda v: v if type(v) is str else ""
)
def test_options_are_as_the_settings_say(name: str, command: Any) -> None:
    given = [one for one in command.params if isinstance(one, TyperOption)]
    found = {one.name: one for one in given if one.name in NAMES}
    assert set(found) == FLAGS[name] | OWN.get(name, set())
    for setting in FLAGS[name]:
        option = found[setting]
        assert option.opts == [f"--{setting.replace('_', '-')}"]
        default = getattr(Settings(), setting)
        shown = "on" if default is True else default
        says = HELP[setting] + ("" if shown is None or shown is False else f" Default: {shown}.")
        assert option.help == says
        assert option.default is None
        assert not option.required
    assert all(one.help for one in given)
    # Of a Python list its reader knows nothing.
    assert all(one.metavar or not one.multiple for one in given)


def test_every_setting_says_what_it_is() -> None:
    assert set(HELP) == set(NAMES)
    assert all(said.endswith(".") for said in HELP.values())
    assert not any("--" in said for said in HELP.values())


@pytest.mark.parametrize("command", list(FLAGS))
def test_what_a_command_cannot_honour_it_refuses(
    edgewise: Edgewise, tmp_path: Path, command: str
) -> None:
    arguments, sentence = ENDS_EARLY[command]
    for name in NAMES:
        # A limit of costs means nothing without a price.
        priced = name in COSTS and name not in REFUSED.get(command, set())
        values = {name: VALUES[name]} | ({"price": VALUES["price"]} if priced else {})
        (tmp_path / "edgewise.toml").write_text(toml(values))
        result = edgewise(*command.split(), *arguments)
        shown = name.replace("_", "-")
        if name in REFUSED.get(command, set()):
            assert (result.code, result.out) == (2, "")
            assert result.err == (
                f"edgewise: edgewise {command} cannot honour {shown} in edgewise.toml; "
                "take it out there.\n"
            )
        elif name == "cloud_key_env" and command not in NO_SETTINGS:
            assert result.code == 2
            assert result.err.startswith("edgewise: cloud-key-env in edgewise.toml would send ")
        else:
            assert "cannot honour" not in result.err, name
            assert sentence in result.err + result.out, name


def test_all_that_cannot_be_honoured_is_said_at_once(
    edgewise: Edgewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edgewise.toml").write_text("temperature = 0.7\nspan = 2\nmin-p = 0.1\n")
    monkeypatch.setenv("EDGEWISE_MAX_CLOUD_TOKENS", "3")
    result = edgewise("eval", "pocketqa", "--limit", "0")
    assert result.err == (
        "edgewise: edgewise eval cannot honour temperature in edgewise.toml, span in "
        "edgewise.toml and EDGEWISE_MAX_CLOUD_TOKENS in the environment; take them out there.\n"
    )


def test_a_default_that_is_written_down_is_no_wish(edgewise: Edgewise, tmp_path: Path) -> None:
    (tmp_path / "edgewise.toml").write_text("temperature = 0\nspan = 1\nrun-ahead = 16\n")
    assert "limit must be" in edgewise("eval", "pocketqa", "--limit", "0").err


def test_what_an_own_flag_replaces_is_not_in_force(edgewise: Edgewise, tmp_path: Path) -> None:
    (tmp_path / "edgewise.toml").write_text("threshold = 0.5\n")
    refused = edgewise("eval", "pocketqa", "--limit", "0")
    assert "cannot honour threshold" in refused.err
    for flags in (("--cloud-share", "0.1"), ("--cloud-share", "0.1", "--cloud-share", "0.2")):
        assert "limit must be" in edgewise("eval", "pocketqa", "--limit", "0", *flags).err


def test_a_share_in_the_file_is_a_share_on_the_command_line(
    edgewise: Edgewise, tmp_path: Path
) -> None:
    (tmp_path / "edgewise.toml").write_text("cloud-share = 0.9\n")
    assert "No threshold is calibrated for 0.9" in edgewise("demo").err
    assert "calibrated for 0.8" in edgewise("demo", "--cloud-share", "0.8").err
    (tmp_path / "edgewise.toml").write_text("cloud-share = 1.0\n")
    for command in (("eval", "pocketqa"), ("bench", "link")):
        assert "must lie between 0 and 1" in edgewise(*command).err
    (tmp_path / "edgewise.toml").write_text("cloud-share = 2\ncloud = 'http://127.0.0.1:9'\n")
    assert "from 0.001 to 1" in edgewise("bench", "paper").err


def test_a_bad_file_is_refused_before_anything_is_done(edgewise: Edgewise, tmp_path: Path) -> None:
    (tmp_path / "edgewise.toml").write_text("spam = 1\n")
    for command in ("run", "demo", "gateway", "router check"):
        result = edgewise(*command.split(), *ENDS_EARLY[command][0])
        assert (result.code, "did you mean 'span'?" in result.err) == (2, True)


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
        (
            Settings(span=4, on_cloud_error="raise"),
            {"name": "me", "span": [4, 5], "context": 3},
        ),
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
    with pytest.raises(UsageError, match=r"^copy cannot honour threads in edgewise\.toml; take it"):
        call(command, "me")


@pytest.mark.parametrize("arguments", [("--spam", "1"), ("--threads", "two"), ("--on", "x")])
def test_what_is_no_option_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    command, ran = an_app(takes("threads", reads=["span"]))
    with pytest.raises(typer.TyperException):
        call(command, "me", *arguments)
    assert not ran


class Flag:
    """A parameter as Typer shows it."""

    def __init__(self, name: str, *opts: str) -> None:
        self.name, self.opts = name, list(opts)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UsageError("No room", hint="lower it", setting="ctx"), "No room; lower it (--ctx)."),
        (UsageError("No room.", setting="ctx"), "No room (--ctx)."),
        (
            UsageError("No", hint="set it", setting="cloud_key"),
            "No; set it (EDGEWISE_CLOUD_KEY).",
        ),
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
    flags = [Flag("ctx", "--ctx"), Flag("figure", "--plot"), Flag("router", "router")]
    assert options.told(error, flags) == said
    fix = options.fix(error, flags)
    assert fix is None if error.hint is None else said.endswith(f"; {fix}.")


def test_the_same_error_is_reached_otherwise_from_another_command(
    edgewise: Edgewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "'bundled' (--edge)." in edgewise("run", "Hello", "--edge", "no.gguf").err
    monkeypatch.setenv("EDGEWISE_CLOUD", "no.gguf")
    assert "'bundled' (--cloud)." in edgewise("eval", "pocketqa", "--limit", "1").err
    told = edgewise("doctor", "--edge", "no.gguf").out
    assert "fix: name a path, a hub repository (owner/repo) or 'bundled' (--edge)" in told
