"""A package as pip leaves it: what says which entry points it adds."""

from pathlib import Path


def install(folder: Path, name: str, *points: str, group: str) -> None:
    """Let a package `name` in `folder` add the entry points, such as "half = halves:Half"."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *points]) + "\n")
