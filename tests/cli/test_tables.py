"""What is printed: tables of figures, and the line after an answer that the cloud verified."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from edgewise.cli import render
from edgewise.errors import Fault
from edgewise.events import Finished, Reason, Timing, Token, Usage
from edgewise.pair import Pair
from edgewise.testing import ScriptedCloud, ScriptedEdge, replying
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


def found(families: tuple[str, ...] = FAMILIES, more: str = LONG) -> dict[Cell, list[Outcome]]:
    exact = outcomes("xX.x", families=families, cloud=1)
    return {
        EDGE: outcomes("x...", families=families),
        CLOUD: outcomes("xXXX", families=families, cloud=10),
        Cell("query-level", 0.05): outcomes("Xx..", families=families, cloud=2),
        Cell("exact"): [replace(one, cached=None, computed=None) for one in exact],
        Cell(more, 0.05): outcomes("xX..", families=families, cloud=1),
    }


def shown(capsys: pytest.CaptureFixture[str], outcomes: dict[Cell, list[Outcome]]) -> list[str]:
    capsys.readouterr()
    shared.figures_tables("animals, 24 questions", rows(outcomes))
    return capsys.readouterr().out.splitlines()


def test_in_a_pipe_nothing_is_cut_or_folded(capsys: pytest.CaptureFixture[str]) -> None:
    named = [line for line in shown(capsys, found()) if f"{LONG} at 5%" in line]
    assert len(named) == 3


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_folds_what_is_too_long(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    terminal = Console(width=width, force_terminal=True, color_system=None, soft_wrap=True)
    monkeypatch.setattr(render, "out", terminal)
    with terminal.capture() as drawn:
        shared.figures_tables("animals", rows(found()))
    lines = drawn.get().splitlines()
    assert max(map(len, lines)) <= width
    names = "".join(line.split()[0] for line in lines if line.strip())
    assert names.count(LONG[:6]) == 3


NAMES = ("[/facts]", "[red]steps", ":smile:", "a\x1b[31mb")
"""Of families, as a file of questions may have them."""


def test_names_are_shown_but_for_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(shown(capsys, found(NAMES, "[/mine]")))
    for said in ("[/facts]", "[red]steps", ":smile:", "a[31mb", "[/mine] at 5%"):
        assert said in text
    assert "\x1b" not in text


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
    lines = [one for one in shown(capsys, found())[:12] if one.startswith(("edge", "cloud"))]
    assert len(lines) == 2
    for line in lines:
        assert re.search(r"\d%? \(\d+ to \d+\)", line)


def test_an_unknown_end_is_no_question_mark() -> None:
    assert shared.gap(0.6, (0.1, 0.9)) == "60% (10 to 90)"
    assert shared.gap(0.6, (0.1, math.inf)) == "60% (10 or more)"
    assert shared.gap(0.6, (-math.inf, 0.9)) == "60% (90 or less)"
    assert shared.gap(0.6, (-math.inf, math.inf)) == "60% (unsure)"


@pytest.fixture
def pair() -> Iterator[Pair]:
    script = replying("blue", prompt="sky? ")
    with Pair(ScriptedEdge(script), cloud=ScriptedCloud(script), cloud_share=0.1) as opened:
        opened.policy = replace(opened.policy, verify="on")
        yield opened


def token(index: int, reason: Reason | Fault, ratio: float | None = None) -> Token:
    measured: Any = {"score": None, "logprob": None, "seconds": 0.1, "wait": 0.0}
    source = "cloud" if reason == "corrected" else "edge"
    told: Any = {"source": source, "reason": reason, "threshold": 0.3, "ratio": ratio}
    return Token(index=index, id=97, text="a", **measured, **told)


def told(pair: Pair, *reasons: Reason | Fault, share: float, ratio: float | None = None) -> str:
    """The summary of an answer whose second token has this ratio."""
    known = 1.0 if ratio is None else ratio
    tokens = [
        token(index, reason, known if reason in ("verified", "corrected") else None)
        for index, reason in enumerate(reasons)
    ]
    usage = Usage(
        prompt_tokens=5,
        edge_tokens=sum(one.source == "edge" for one in tokens),
        cloud_tokens=reasons.count("corrected"),
        verified_tokens=reasons.count("verified"),
        cloud_share=share,
        lowest_ratio=ratio,
        lowest_at=None if ratio is None else 1,
    )
    end = Finished(text="", finish_reason="stop", usage=usage, timing=Timing(total=2.0))
    line = render.summary(end, tokens, pair)
    assert "\n" not in line
    return line


def figures(line: str) -> list[str]:
    """The numbers in a line, without the time that it ends with."""
    return re.findall(r"[\d.]+\d%?|\d+%?", line.rpartition(" · ")[0])


def test_what_was_verified_is_told(pair: Pair) -> None:
    """The corrections, the share, the least sure token, and reasons of what was not verified."""
    line = told(pair, "verified", "verified", "corrected", ratio=0.34, share=0.05)
    assert figures(line) == ["1", "3", "5.0%", "10%", "1", "0.34"]
    assert f"verified by {pair.cloud.name}:" in line
    # It counts over all answers.
    assert "cloud share 50.0%" in told(pair, "verified", "corrected", share=0.5)
    # Where all are the cloud's own choice none is the least sure.
    line = told(pair, "verified", "verified", ratio=1.0, share=0.0)
    assert figures(line) == ["0", "2", "0.0%", "10%"]
    late: list[Fault] = ["timeout", "timeout", "timeout"]
    line = told(pair, "verified", *late, "circuit_open", "forced", share=0.0)
    assert figures(line)[4:] == ["3", "1"]
    assert "3 not verified: timeout" in line
    assert "1 not verified: consults" in line


def test_an_answer_that_routers_decided_has_its_own_line(pair: Pair) -> None:
    assert "verified" not in told(pair, "below_threshold", share=0.0)
    pair.policy = replace(pair.policy, verify="off")
    line = told(pair, "below_threshold", "critical", share=0.05)
    assert "verified" not in line
    assert figures(line)[:2] == ["2", "0"]
