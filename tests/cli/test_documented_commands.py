"""Every command in the documents does what a reader would see it do.

A command of Edgewise is taken by the command line as it is written: its flags are there, its values
valid. One that answers on models here, or on a real llama-server, is then run.
"""

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from edgewise import settings
from edgewise.addresses import bundled
from edgewise.cli.app import app
from edgewise.settings import NAMES
from tests.cli.conftest import Edgewise
from tests.documents import PAGES, ROOT, Block, Command, blocks, commands
from tests.llama_server_process import RECOMMENDED, llama_server

PYTHON = {
    "docs/clients.md": "tests/server/test_clients.py",
    "docs/evaluation.md": "tests/cli/test_own_parts.py",
    "docs/routers.md": "tests/cli/test_own_parts.py",
}
"""Pages whose Python a test of their own runs."""

QUICK = {"run", "chat", "doctor", "router show"}
QUICK |= {"keys add", "keys list", "keys revoke"}
ANSWERS = {"run", "chat"}
ELSEWHERE = re.compile(r"\.\.\.$|^hf:|^\w[\w-]*/[\w.-]+(?::[\w.-]+)?$|api\.|:8400|mine\.routers")
"""Words of a command that needs a hub, an API, a gateway's key or a package of one's own."""

SHOWN = ("https://host:8080", "http://host:8080", "https://host")


def written_in(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


SHELL = written_in("sh", "bash")


def leaf(words: list[str]) -> tuple[str, Any, list[str]]:
    """The command that words name, and the words left for it."""
    command, path, rest = get_command(app), [], list(words)
    while isinstance(command, TyperGroup) and rest and rest[0] in command.commands:
        path.append(rest.pop(0))
        command = command.commands[path[-1]]
    return " ".join(path), command, rest


def taken(words: list[str], folder: Path) -> None:
    """Fails for a command that the command line does not take as it is written."""
    path, command, rest = leaf(words)
    if isinstance(command, TyperGroup) and not command.invoke_without_command:
        assert rest in (["--help"], ["--version"]), words
        return
    context = command.make_context(f"edgewise {path}", rest)
    given = {name: value for name, value in context.params.items() if name in NAMES}
    flags = {name: value for name, value in given.items() if not isinstance(value, list | tuple)}
    settings.load(flags, environment={}, folder=folder)


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_are_taken_as_they_are_written(block: Block, tmp_path: Path) -> None:
    for words, _ in commands(block.text):
        if words[0] != "edgewise":
            continue
        try:
            taken(words[1:], tmp_path)
        except typer.TyperException as error:
            pytest.fail(f"{block}: {' '.join(words)}: {error.format_message()}")


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A real llama-server with the bundled cloud model."""
    pytest.importorskip("xllamacpp", reason="its wheel has the server")
    with llama_server(bundled("cloud"), flags=RECOMMENDED) as url:
        yield url


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    """The folder of who reads: models, questions, a router, under the names that documents use."""
    for part, name in (("edge", "small"), ("cloud", "large")):
        (tmp_path / f"{name}.gguf").symlink_to(bundled(part))
    shutil.copytree(bundled("router"), tmp_path / "router")
    (tmp_path / "prices.toml").write_text("input = 0.28\ncached = 0.028\noutput = 0.42\n")
    (tmp_path / "words.txt").write_text("Anna Smith\n")
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/routers.md").read_text(), re.S)[:1]
    (tmp_path / "mine.py").write_text(block)
    return tmp_path


def is_run_here(command: Command) -> bool:
    words = command.words
    spoken = [word for word in words[2:] if word != "..."]
    return (
        words[0] == "edgewise"
        and not QUICK.isdisjoint((words[1], " ".join(words[1:3])))
        and not any(map(ELSEWHERE.search, [*spoken, *command.variables.values()]))
    )


RUN_HERE = [one for one in SHELL if not one.mark and any(map(is_run_here, commands(one.text)))]


@pytest.mark.deep
@pytest.mark.parametrize("page", sorted({block.page for block in RUN_HERE}))
def test_what_is_quick_does_it(
    page: str, edgewise: Edgewise, reader: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, as a reader would; answers are short ones."""
    monkeypatch.setenv("XDG_STATE_HOME", str(reader / "state"))
    for block in [block for block in RUN_HERE if block.page == page]:
        for command in filter(is_run_here, commands(block.text)):
            words = [engine if word in SHOWN else word for word in command.words[1:]]
            if words[0] in ANSWERS and "--max-tokens" not in words:
                words += ["--max-tokens", "4"]
            if "--redact" in words:
                pytest.importorskip("phonenumbers", reason="needs edgewise[redact]")
            done = edgewise(*words)
            assert "consult failed" not in done.err, f"{block}: {done.err}"


@pytest.mark.parametrize("block", written_in("python"), ids=str)
def test_python_runs(
    block: Block, reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = compile(block.text, str(block), "exec")
    if block.mark:
        return
    if block.page in PYTHON:
        assert block.page.rpartition("/")[2] in (ROOT / PYTHON[block.page]).read_text()
        return
    monkeypatch.chdir(reader)
    exec(compiled, {"__name__": "shown"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("block", written_in("toml"), ids=str)
def test_toml_is_read(block: Block, tmp_path: Path) -> None:
    """Settings, a price, entry points, or an agent's own."""
    found = tomllib.loads(block.text)
    if found.keys() & {"project", "input", "model_providers"}:
        return
    (tmp_path / settings.FILE).write_text(block.text)
    settings.load({}, environment={}, folder=tmp_path)


def test_the_examples_of_exit_codes_end_so(edgewise: Edgewise) -> None:
    text = (ROOT / "docs" / "exit-codes.md").read_text()
    examples = re.findall(r"^\| (\d+) \|.*\| `(edgewise .*)` \|$", text, re.MULTILINE)
    assert {code for code, _ in examples} == {"1", "2"}
    for code, example in examples:
        ((words, _),) = commands(example)
        assert "Traceback" not in edgewise(*words[1:], code=int(code)).err
