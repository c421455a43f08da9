"""Property tests over every parser of bytes from outside, with many more examples than in CI.

llama.cpp parses model files, and they may end it: each costs processes, so there are fewer of them.
This module as a program loads broken copies of a GGUF and says of each what became of it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.faults.table import Row
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import EdgewiseError
from tests.mutated_gguf import mutants

TESTS = Path(__file__).parents[2] / "tests" / "test_outside_bytes.py"
PROFILE, EXAMPLES, GGUFS = "faults", 2000, 100


def parser_faults() -> list[Row]:
    """All properties in one row, whose `tries` are their examples."""
    command = [sys.executable, "-m", "pytest", "-q", f"--hypothesis-profile={PROFILE}", str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = (done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]])[-1]
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed)", said)}
    failed, properties = counts.get("failed", 0), sum(counts.values())
    tries = EXAMPLES * properties
    # pytest ends by itself with 0 to 5; anything else is a process that was ended.
    ended, lost = int(done.returncode not in range(6)), failed or int(done.returncode != 0)
    what = f"{properties} properties of parsers, {EXAMPLES:,} examples each"
    return [Row(what, tries, tries, lost, ended, note=said if done.returncode else "")]


def model_file_faults() -> list[Row]:
    """A process that a file ends goes on with the next one."""
    said: list[str] = []
    with TemporaryDirectory() as folder:
        # Files that were loaded once are remembered there.
        kept = {**os.environ, "XDG_CACHE_HOME": folder}
        while len(said) < GGUFS:
            left = [str(len(said)), str(GGUFS - len(said))]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.faults.parsers", *left],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=kept,
            )
            said += done.stdout.splitlines()
            if len(said) < GGUFS:
                said.append("ended")
    failed = [how for how in said if how.startswith("failed")]
    note = "; ".join([f"{said.count('refused')} refused in a sentence", *sorted(set(failed))])
    return [Row("model files, broken", GGUFS, len(said), len(failed), said.count("ended"), 0, note)]


def _loaded(path: Path) -> str:
    """What becomes of whoever loads the file and asks for a token."""
    try:
        with LlamaModel(path, threads=1, context=64) as model:
            session = model.session()
            session.open([0, 1])
            session.step()
    except EdgewiseError:
        return "refused"
    except Exception as error:
        return f"failed: {error!r}"
    return "loaded"


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for _, data in mutants(int(sys.argv[2]), first=int(sys.argv[1])):
            path.write_bytes(data)
            print(_loaded(path), flush=True)
