"""Addresses and file names on the model hub (Hugging Face); `edgewise.hub.client` downloads."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_PART = re.compile(r"(?ai)-(\d{5})-of-(\d{5})\.gguf$")
_NOT_A_MODEL = re.compile(r"(?i)(?:mmproj|imatrix)[^/\\]*$")
# File systems take 255 bytes a part; an error repeats no more of what a stranger wrote.
_LONGEST_NAME, _LONGEST_PART, _SHOWN = 1000, 256, 300


class HubAddress(NamedTuple):
    """An address on the hub: `repo` is owner/name; the others, such as a `quant`, may be None."""

    repo: str
    revision: str | None
    quant: str | None
    file: str | None


def is_plain(name: str) -> bool:
    """Return whether `name` is a relative path that stays below its folder on any system.

    No part may be empty or only dots and blanks, or longer than 255 characters; all of it must be
    printable, without colon and backslash, and have at most 1000 characters.
    """
    parts = name.split("/")
    return (
        len(name) <= _LONGEST_NAME
        and all(part.strip(". ") and len(part) < _LONGEST_PART for part in parts)
        and name.isprintable()
        and not any(letter in name for letter in "\\:")
    )


def short(name: str) -> str:
    """Return the name for an error message; after 300 characters it is cut and ends in "..."."""
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."


def is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def _part(name: str) -> re.Match[str] | None:
    """Return the match of a split GGUF's part, numbered from 1 to the total; else None."""
    found = _PART.search(name)
    return found if found and 1 <= int(found[1]) <= int(found[2]) else None


def first_of(name: str) -> str:
    """Return the first file of the split GGUF that `name` is a part of; any other name as it is."""
    part = _part(name)
    return f"{name[: part.start(1)]}00001{name[part.end(1) :]}" if part else name


def models_among(names: Iterable[str]) -> list[str]:
    """Return those of `names` that are GGUF models, sorted; of a split model its first file.

    Files with mmproj or imatrix in their own names are left out: such GGUFs are no models.
    """
    ggufs = sorted(n for n in names if is_gguf(n) and not _NOT_A_MODEL.search(n))
    return [name for name in ggufs if first_of(name) == name]


def parts_of(name: str) -> list[str]:
    """Return all files of the split GGUF that `name` is a part of; any other name alone."""
    part = _part(name)
    if not part:
        return [name]
    stem, end = name[: part.start(1)], name[part.end(1) :]
    return [f"{stem}{number:05d}{end}" for number in range(1, int(part[2]) + 1)]
