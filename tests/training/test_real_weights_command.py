"""The benchmark on real weights as its command runs it: processes of their own, from the start."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.smollm2_file import smollm2_or_skip

SMALL = ("--train", "16", "--questions", "1", "--calibration", "1", "--seeds", "1")


def test_the_command_trains_answers_and_prints_a_table(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    smollm2_or_skip()
    asked = ("--tasks", "elements", "--shares", "0.1", "--rivals", "entropy")
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.real_weights", "--work", tmp_path, *asked, *SMALL],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "| trained (value) | 10% |" in ran.stdout
    assert "| oracle |" in ran.stdout
