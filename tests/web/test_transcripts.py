"""The package `edgewise-web` decides as the loop does: each repeats the same recorded answers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgewise.routers.thresholds import PROMPTS, SHARES, TOKENS
from tests.programs import Done, run
from tests.web.transcripts import FILE, transcripts

WEB = Path(__file__).parents[2] / "web"


def same(made: Any, kept: Any) -> bool:
    """But for how a processor rounds."""
    if isinstance(made, float) and isinstance(kept, int | float):
        return made == pytest.approx(kept, rel=1e-5, abs=1e-6)
    if isinstance(made, dict):
        return made.keys() == kept.keys() and all(same(made[key], kept[key]) for key in made)
    if isinstance(made, list | tuple):
        return len(made) == len(kept) and all(map(same, made, kept))
    return made == kept


@pytest.mark.deep
def test_the_loop_answers_as_was_recorded() -> None:
    """If this fails, the loop has changed: record again, and make `web/src` do the same."""
    kept = json.loads(FILE.read_text())
    made = transcripts()
    assert [one["name"] for one in made] == [one["name"] for one in kept]
    assert [
        one["name"] for one, other in zip(made, kept, strict=True) if not same(one, other)
    ] == []


def node(*command: str) -> Done:
    """Run in the package's folder."""
    if (program := shutil.which("node")) is None:
        pytest.skip("needs node")
    return run(program, *command, folder=WEB)


@pytest.mark.deep
def test_the_package_answers_as_was_recorded() -> None:
    node("--test", "test/")


def test_both_measure_an_uncalibrated_router_alike() -> None:
    shown = "import('./src/start.js').then(m => console.log(JSON.stringify(m)))"
    start = json.loads(node("-e", shown).stdout)
    assert start["PROMPTS"] == list(PROMPTS)
    assert (start["SHARES"], start["TOKENS"]) == (list(SHARES), TOKENS)
