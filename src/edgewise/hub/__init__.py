"""Names on the model hub; `edgewise.hub.client` downloads what they name."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_PART = re.compile(r"(?i)-(\d{5})-of-(\d{5})\.gguf$")
_NOT_A_MODEL = re.compile(r"(?i)mmproj|imatrix")
_LONGEST_NAME, _LONGEST_PART, _SHOWN = 1000, 256, 300


class HubAddress(NamedTuple):
    """A parsed address on the hub."""

    repo: str
    revision: str | None
    quant: str | None
    file: str | None


def is_plain(name: str) -> bool:
    """Whether a relative path has only ordinary parts: no `..`, no drive, nothing too long."""
    parts = name.split("/")
    return (
        len(name) <= _LONGEST_NAME
        and all(part.strip(". ") and len(part) < _LONGEST_PART for part in parts)
        and name.isprintable()
        and not any(letter in name for letter in "\\:")
    )


def short(name: str) -> str:
    """The name, cut where it is too long for a sentence."""
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."


def is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def first_of(name: str) -> str:
    """The first file of a split model that `name` is a part of; any other name."""
    return _PART.sub(lambda found: found[0].replace(found[1], "00001", 1), name)


def models_among(names: Iterable[str]) -> list[str]:
    """The GGUF models, by name: no projector, no importance matrix, of a split model the first."""
    ggufs = sorted(n for n in names if is_gguf(n) and not _NOT_A_MODEL.search(n))
    return [name for name in ggufs if (part := _PART.search(name)) is None or int(part[1]) == 1]


def parts_of(name: str) -> list[str]:
    """The files of a split model that `name` is the first of; any other name alone."""
    match = _PART.search(name)
    if not match:
        return [name]
    stem, end = name[: match.start()], name[match.start(2) - 4 :]
    return [f"{stem}-{part:05d}{end}" for part in range(1, int(match[2]) + 1)]
