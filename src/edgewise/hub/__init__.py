"""Names on the model hub; `edgewise.hub.client` downloads what they name."""

from typing import NamedTuple

from edgewise.errors import AddressError

_LONGEST_NAME, _LONGEST_PART, _SHOWN = 1000, 256, 300


class HubAddress(NamedTuple):
    """What an address names on the hub."""

    repo: str
    revision: str | None
    quant: str | None
    file: str | None


def require_plain(address: HubAddress, *, setting: str | None) -> None:
    """Raise `AddressError` for names that lead elsewhere on a hub, or on this disk."""
    for what, name in zip(("repository", "revision", "quantisation", "file"), address, strict=True):
        if name is not None and not is_plain(name):
            raise AddressError(
                f"A {what} of a hub cannot be called {short(name)!r}",
                hint="check the address",
                setting=setting,
            )


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
