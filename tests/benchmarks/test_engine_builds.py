"""Two environments, here one and the same: each says its build and takes its turns."""

import os
import subprocess
import sys
from pathlib import Path

from edgewise.addresses import bundled

ROOT = Path(__file__).parents[2]


def compared(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.engine_builds", *arguments, "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": f"{ROOT}/src:{ROOT}"},
        cwd=ROOT,
    )


def test_a_build_is_as_fast_as_itself(tmp_path: Path) -> None:
    small = ("--context", "8", "--tokens", "4", "--turns", "2", "--rounds", "2")
    edge = ("--model", str(bundled("edge")))
    done = compared(sys.executable, sys.executable, *edge, *small, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    _, _, first, second, *_ = done.stdout.splitlines()
    assert "| 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) |" in first
    assert first.split("|")[1] == second.split("|")[1]
    assert float(second.split("|")[-2]) > 0


def test_one_build_is_compared_with_nothing(tmp_path: Path) -> None:
    done = compared(sys.executable, "--model", str(bundled("edge")), folder=tmp_path)
    assert done.returncode == 2
    assert "name two interpreters or more" in done.stderr
