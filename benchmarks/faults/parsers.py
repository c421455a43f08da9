"""Property tests over every parser of bytes from outside, with many more examples than in CI.

llama.cpp parses model files, and they may end it: each costs processes, so there are fewer of them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.faults.table import Row

TESTS = Path(__file__).parents[2] / "tests" / "test_outside_bytes.py"
PROFILE, EXAMPLES = "faults", 2000
GGUFS = 100


def parser_faults() -> list[Row]:
    """All properties in one row, whose `tries` are their examples."""
    command = [sys.executable, "-m", "pytest", "-q", f"--hypothesis-profile={PROFILE}", str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True)
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


def model_file_faults() -> list[Row]:
    """A process that a file ends goes on with the next one."""
    said: list[str] = []
    ended = 0
    with TemporaryDirectory() as folder:
        # Files that were loaded once are remembered there.
        kept = {**os.environ, "XDG_CACHE_HOME": folder}
        while len(said) < GGUFS:
            named = [str(len(said)), str(GGUFS - len(said))]
            command = [sys.executable, "-m", "benchmarks.faults.loader", *named]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=kept
            )
            said += done.stdout.splitlines()
            if len(said) < GGUFS:
                said.append("ended")
                ended += 1
    refused, failed = said.count("refused"), [how for how in said if how.startswith("failed")]
    note = "; ".join([f"{refused} refused in a sentence", *sorted(set(failed))])
    return [Row("model files, broken", GGUFS, len(said), len(failed), ended, 0, note)]
