"""Tables on a terminal of 60 columns: none is wider, and nothing that they say is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from edgewise.addresses import bundled
from edgewise.cli import render
from edgewise_lab.commands import shared
from edgewise_lab.evaluation.report import rows
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.cli.conftest import Edgewise
from tests.cli.test_tables import LONG, found, outcomes
from tests.llama_server_process import llama_server

WIDTH = 60

Shown = list[tuple[Table, str]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Every table that is shown from here on, with what a narrow terminal is sent for it."""
    terminal = Console(
        width=WIDTH,
        height=50,
        force_terminal=True,
        color_system=None,
        highlight=False,
        soft_wrap=True,
    )
    tables: Shown = []
    show: Callable[[Table], None] = render.show

    def seen(table: Table) -> None:
        with terminal.capture() as drawn:
            show(table)
        tables.append((table, drawn.get()))

    monkeypatch.setattr(render, "out", terminal)
    monkeypatch.setattr(render, "show", seen)
    return tables


def require_whole(shown: Shown, count: int = 1) -> None:
    assert len(shown) == count
    for table, text in shown:
        assert max(map(len, text.splitlines())) <= WIDTH, text
        # Long words go on in the next line.
        joined = "".join(text.split())
        cells = [str(cell) for column in table.columns for cell in column.cells]
        filled = [column for column in table.columns if any(map(str, column.cells))]
        headers = [str(column.header) for column in filled if table.show_header]
        for cell in (*cells, *headers, str(table.title or ""), str(table.caption or "")):
            assert "".join(cell.split()) in joined, (cell, text)


def test_figures_of_a_task(shown: Shown) -> None:
    named = {**found(), Cell(LONG, 0.05): outcomes("xX..", cloud=1)}
    shared.figures_tables("animals, 24 questions", rows(named))
    require_whole(shown, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ("config",),
        ("models", "list"),
        ("router", "show", "bundled"),
        ("keys", "list", "--keys", "keys.json"),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_what_is_listed(
    edgewise: Edgewise,
    shown: Shown,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.setenv("EDGEWISE_EDGE", "./" + "a-long-name/" * 9 + "small.gguf")
    if arguments[0] == "keys":
        add = ("keys", "add", "a-laptop", "--keys", "keys.json", "--expires", "90d")
        assert edgewise(*add).code == 0
    result = edgewise(*arguments)
    assert result.code == 0, result.err
    require_whole(shown)


@pytest.mark.deep
def test_why_and_what_was_sent(
    edgewise: Edgewise, shown: Shown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    lines = f"{pocketqa().questions[1].prompt}\n/why\n"
    with llama_server(bundled("cloud")) as url:
        chat = edgewise("chat", "--cloud", url, "--cloud-share", "0.3", stdin=lines.encode())
    assert chat.code == 0, chat.err
    result = edgewise("sent")
    assert result.code == 0, result.err
    require_whole(shown, 2)


@pytest.mark.deep
def test_measurements(edgewise: Edgewise, shown: Shown) -> None:
    quick = ("--questions", "2", "--pace", "none", "--round-trip", "5")
    for command in ("link", "frontier"):
        result = edgewise("bench", command, *quick)
        assert result.code == 0, result.err
    require_whole(shown, 4)
