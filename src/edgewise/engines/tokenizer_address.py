"""Where the tokenizer of an engine may lie, by what the engine says of its model."""

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from edgewise.listening.sockets import is_loopback

# As a hub names repositories; no other address, no place on this disk.
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")

_LONGEST_PATH = 1000


def tokenizer_address(said: Iterable[str | None], url: str) -> str | None:
    """The first of what the engine at `url` said that can be used; None where nothing can.

    A hub's repository (owner/repo), or the path of a GGUF or of a folder with `tokenizer.json`,
    which counts only where the engine is on this device.
    """
    here = is_loopback(urlsplit(url).hostname or "")
    names = [name for name in said if name]
    return next(
        (name for name in names if is_repository(name) or (here and _lies_here(name))), None
    )


def is_repository(name: str) -> bool:
    """Whether that is how a hub names a repository."""
    return _REPOSITORY.fullmatch(name) is not None and ".." not in name


def _lies_here(name: str) -> bool:
    # Two slashes lead to other machines, on Windows.
    if len(name) > _LONGEST_PATH or not name.isprintable() or name[:2] in ("//", "\\\\"):
        return False
    path = Path(name)
    try:
        whole = path.is_absolute() and ".." not in path.parts
        gguf = path.suffix == ".gguf" and path.is_file()
        return whole and (gguf or (path / "tokenizer.json").is_file())
    except (OSError, ValueError):
        return False
