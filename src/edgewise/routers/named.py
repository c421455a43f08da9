"""Routers that need no checkpoint, by name."""

from collections.abc import Callable

from edgewise.errors import UsageError
from edgewise.registry import Registry
from edgewise.routers.base import Router
from edgewise.routers.constant import Constant

ROUTERS: Registry[Callable[[], Router]] = Registry(
    "router",
    "edgewise.routers",
    {
        "random": "edgewise.routers.constant:Random",
        "max-prob": "edgewise.routers.uncertainty:MaxProb",
        "margin": "edgewise.routers.uncertainty:Margin",
        "entropy": "edgewise.routers.uncertainty:Entropy",
        "logtoku": "edgewise.routers.uncertainty:LogTokU",
    },
)
_CONSTANT = "constant:"


def is_router(name: str) -> bool:
    """Whether `name` is that of a router, and not of a checkpoint."""
    return name.startswith(_CONSTANT) or name in ROUTERS


def router_named(name: str) -> Router:
    """A router that needs no checkpoint: built in, or of an entry point. Raises `UsageError`."""
    if name.startswith(_CONSTANT):
        return _constant(name)
    if name not in ROUTERS:
        raise UsageError(
            f"There is no router {name!r}; name a checkpoint's folder, constant:VALUE, or one of "
            f"{', '.join(ROUTERS.names())}."
        )
    return ROUTERS.load(name)()


def _constant(name: str) -> Router:
    try:
        value = float(name.removeprefix(_CONSTANT))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"{name!r} needs a value from 0 to 1, such as constant:0.5.")
    return Constant(value)
