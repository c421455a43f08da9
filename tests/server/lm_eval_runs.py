"""Runs of the LM Evaluation Harness in one process: `python lm_eval_runs.py MODULE ARG... -- ...`.

Each is a command line behind its module's name; prints the exit codes. Importing the harness takes
longer than running it.
"""

import sys
from importlib import import_module

MAIN = {"lm_eval.__main__": "cli_evaluate", "edgewise_lab.lm_eval": "main"}


def run(module: str, *arguments: str) -> int:
    sys.argv = ["lm_eval", "run", *arguments]
    try:
        getattr(import_module(module), MAIN[module])()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


given = sys.argv[1:]
codes = []
while given:
    end = given.index("--") if "--" in given else len(given)
    one, given = given[:end], given[end + 1 :]
    codes.append(run(*one))
print(*codes)
