"""Results on disk: JSON Lines that are only appended to, in a folder that knows whose they are."""

import os
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
            # Under another name first: a manifest that is there is whole.
            partial = path.with_suffix(".partial")
            partial.write_bytes(described)
            partial.replace(path)
        elif path.read_bytes() != described:
            raise UsageError(
                f"{str(folder)!r} holds results of other models, questions or settings",
                hint="name another folder",
                setting="out",
            )
    except OSError as error:
        raise UsageError(
            f"{str(folder)!r} cannot be used: {error.strerror}",
            hint="name another folder",
            setting="out",
        ) from error


def read(path: Path, kind: type[Kind]) -> list[Kind]:
    """What is complete; a last line that was cut is dropped, so that appending goes on."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        # Not rewritten: a crash in between would lose what is whole.
        os.truncate(path, len(whole))
    try:
        return [msgspec.json.decode(line, type=kind) for line in whole.splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(path)!r} is damaged ({error})", hint="remove it") from error


def append(path: Path, line: msgspec.Struct) -> None:
    """Add a line."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
