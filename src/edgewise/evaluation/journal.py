"""Results on disk: JSON Lines that are only appended to, in a folder that knows whose they are."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from edgewise.errors import UsageError

MANIFEST = "manifest.json"

Kind = TypeVar("Kind", bound=msgspec.Struct)


def claim(folder: Path, manifest: Mapping[str, object]) -> None:
    """Make `folder` the place of what `manifest` describes: models, task, settings.

    Raises `UsageError` where it holds something else or cannot be written.
    """
    described = msgspec.json.format(msgspec.json.encode(manifest))
    path = folder / MANIFEST
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(described)
        elif path.read_bytes() != described:
            raise UsageError(
                f"{str(folder)!r} holds results of other models, questions or settings; name "
                "another folder with --out."
            )
    except OSError as error:
        raise UsageError(f"{str(folder)!r} cannot be used: {error.strerror}.") from error


def read(path: Path, kind: type[Kind]) -> list[Kind]:
    """What is complete; a last line that was cut is dropped, so that appending goes on."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    try:
        return [msgspec.json.decode(line, type=kind) for line in whole.splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(path)!r} is damaged ({error}); remove it.") from error


def append(path: Path, line: msgspec.Struct) -> None:
    """Add a line."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
