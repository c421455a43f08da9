"""Packages: whether one is installed, and one as pip leaves it, with its entry points."""

from importlib.util import find_spec
from pathlib import Path

import pytest


def require(*packages: str) -> None:
    """Skip a test, a module or a folder without these packages; none is imported."""
    for name in packages:
        if find_spec(name) is None:
            pytest.skip(f"needs {name}", allow_module_level=True)


def install(folder: Path, name: str, *points: str, group: str) -> None:
    """Let a package `name` in `folder` add the entry points, such as "half = halves:Half"."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *points]) + "\n")
