"""Programs that run to their end, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Done = subprocess.CompletedProcess[str]
"""How a program ended, and what it said."""


def run(
    *command: str,
    code: int | None = 0,
    folder: Path | None = None,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    **variables: str,
) -> Done:
    """Run a program; fails unless it ends with `code`, None being any.

    Its environment is this process's without what the developer has set for Edgewise, the hub or a
    proxy, or it is the one given; `variables` are added.
    """
    if environment is None:
        own = ("EDGEWISE_", "HF_", "HTTP")
        environment = {k: v for k, v in os.environ.items() if not k.upper().startswith(own)}
    done = subprocess.run(
        command,
        env={**environment, **variables},
        cwd=folder,
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def python(*arguments: str, **options: Any) -> Done:
    """This interpreter with these arguments, as `run`."""
    return run(sys.executable, *arguments, **options)
