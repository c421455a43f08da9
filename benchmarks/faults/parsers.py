"""Property tests over every parser of bytes from outside, with many more examples than in CI."""

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.faults.table import Row

TESTS = Path(__file__).parents[2] / "tests" / "test_outside_bytes.py"
PROFILE, EXAMPLES = "faults", 2000


def parser_faults() -> list[Row]:
    """One row: `tries` are the examples of all properties."""
    command = [sys.executable, "-m", "pytest", "-q", f"--hypothesis-profile={PROFILE}", str(TESTS)]
    # The project's own warnings are errors; a run of this length is none of its tests.
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    told = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-200:]]
    passed, failed = (_count(told[0], word) for word in ("passed", "failed"))
    # pytest ends by itself with 0 or 1; anything else is a process that was ended.
    ended = int(done.returncode not in (0, 1, 2, 3, 4, 5))
    properties = passed + failed
    row = Row(
        f"{properties} properties of parsers, {EXAMPLES:,} examples each",
        EXAMPLES * properties,
        EXAMPLES * properties,
        failed + int(done.returncode != 0 and not failed),
        ended,
        0,
        told[0] if done.returncode else "",
    )
    return [row]


def _count(line: str, word: str) -> int:
    found = re.search(rf"(\d+) {word}", line)
    return int(found[1]) if found else 0
