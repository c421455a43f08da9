"""Tables of figures, on a terminal and in a pipe."""

import math
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from edgewise.cli import render
from edgewise_lab.commands import shared
from edgewise_lab.evaluation.report import CLOUD, EDGE, rows
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.systems import Outcome
from tests.evaluation.test_report import outcomes as of_a_family

FAMILIES = ("facts", "two-hop", "steps", "sorting", "choices", "free-text")
LONG = "a-router-of-a-very-long-name-indeed.py:Mine"


def outcomes(right: str, *, families: tuple[str, ...] = FAMILIES, cloud: int = 0) -> list[Outcome]:
    """One answer of ten tokens a letter and family."""
    return [one for name in families for one in of_a_family(right, family=name, cloud=cloud)]


def found(families: tuple[str, ...] = FAMILIES) -> dict[Cell, list[Outcome]]:
    exact = outcomes("xX.x", families=families, cloud=1)
    return {
        EDGE: outcomes("x...", families=families),
        CLOUD: outcomes("xXXX", families=families, cloud=10),
        Cell("query-level", 0.05): outcomes("Xx..", families=families, cloud=2),
        Cell("exact"): [replace(one, cached=None, computed=None) for one in exact],
    }


def shown(capsys: pytest.CaptureFixture[str], outcomes: dict[Cell, list[Outcome]]) -> list[str]:
    capsys.readouterr()
    shared.figures_tables("animals, 24 questions", rows(outcomes))
    return capsys.readouterr().out.splitlines()


def test_in_a_pipe_nothing_is_cut_or_folded(capsys: pytest.CaptureFixture[str]) -> None:
    table = {**found(), Cell(LONG, 0.05): outcomes("xX..", cloud=1)}
    named = [line for line in shown(capsys, table) if f"{LONG} at 5%" in line]
    assert len(named) == 3


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_folds_what_is_too_long(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    terminal = Console(width=width, force_terminal=True, color_system=None, soft_wrap=True)
    monkeypatch.setattr(render, "out", terminal)
    with terminal.capture() as drawn:
        table = {**found(), Cell(LONG, 0.05): outcomes("xX..", cloud=1)}
        shared.figures_tables("animals", rows(table))
    lines = drawn.get().splitlines()
    assert max(map(len, lines)) <= width
    names = "".join(line.split()[0] for line in lines if line.strip())
    assert names.count(LONG[:6]) == 3


NAMES = ("[/facts]", "[red]steps", ":smile:", "a\x1b[31mb")
"""Of families, as a file of questions may have them."""


def test_names_are_shown_as_they_are_but_for_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "\n".join(shown(capsys, found(NAMES)))
    for said in ("[/facts]", "[red]steps", ":smile:", "a[31mb"):
        assert said in text
    assert "\x1b" not in text
    figures = {EDGE: outcomes("xx.."), CLOUD: outcomes("XXXX", cloud=10)}
    figures[Cell("[/mine]", 0.05)] = outcomes("XX..")
    assert "[/mine] at 5%" in "\n".join(shown(capsys, figures))


def test_progress_is_told_in_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with render.progress(every=0) as progress:
        bar = progress.add_task("answers", total=4)
        for _ in range(2):
            progress.advance(bar)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("answers: 2 of 4, about 0:00:0")
    with render.progress(every=0) as progress:
        bar = progress.add_task("calibration", total=None)
        progress.advance(bar)
    assert capsys.readouterr().err == "calibration: 1\n"
    for quiet in (render.progress(), render.progress(hidden=True, every=0)):
        with quiet as progress:
            progress.advance(progress.add_task("answers", total=4))
    assert capsys.readouterr().err == ""


def test_right_answers_have_their_interval(capsys: pytest.CaptureFixture[str]) -> None:
    edge, cloud = (
        line for line in shown(capsys, found())[:12] if line.startswith(("edge", "cloud"))
    )
    for line in (edge, cloud):
        assert re.search(r"\d%? \(\d+ to \d+\)", line)


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ((0.1, 0.9), "60% (10 to 90)"),
        ((0.1, math.inf), "60% (10 or more)"),
        ((-math.inf, 0.9), "60% (90 or less)"),
        ((-math.inf, math.inf), "60% (unsure)"),
    ],
)
def test_an_end_that_is_not_known_is_no_question_mark(
    interval: tuple[float, float], said: str
) -> None:
    assert shared.gap(0.6, interval) == said
