"""Names on the model hub; `edgewise.hub.client` downloads what they name."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
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


def models_among(names: Iterable[str]) -> list[str]:
    """The GGUF models, by name: no projector, no importance matrix, of a split model the first."""
    ggufs = sorted(n for n in names if n.endswith(".gguf") and not _NOT_A_MODEL.search(n))
    return [name for name in ggufs if (part := _PART.search(name)) is None or int(part[1]) == 1]


def parts_of(name: str) -> list[str]:
    """The files of a split model that `name` is the first of; any other name alone."""
    match = _PART.search(name)
    if not match:
        return [name]
    count, stem = int(match[2]), name[: match.start()]
    return [f"{stem}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]
