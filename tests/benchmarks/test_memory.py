"""What a process held is its own, not that of who started it."""

import subprocess
import sys

import numpy as np

from benchmarks.memory import peak_memory

LARGE = 400
"""MB."""


def test_a_large_parent_is_not_counted() -> None:
    held = np.ones(LARGE << 17)
    assert peak_memory() > LARGE
    ask = "from benchmarks.memory import peak_memory; print(peak_memory())"
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=60
    )
    assert 1 < float(done.stdout) < LARGE / 2
    assert held[0] == 1
