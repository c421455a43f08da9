"""Names on the model hub; `edgewise.hub.client` downloads what they name."""

from typing import NamedTuple

_LONGEST_NAME, _LONGEST_PART, _SHOWN = 1000, 256, 300


class HubAddress(NamedTuple):
    """What an address names on the hub."""

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
