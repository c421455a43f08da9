"""Routers by name: the registry of router classes, and routers made from names or checkpoints."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from edgewise.addresses import local_folder
from edgewise.edge.base import Needs
from edgewise.errors import EdgewiseError, UsageError
from edgewise.registry import Registry, code_file, did_you_mean, is_code
from edgewise.routers.base import Router, Trained
from edgewise.routers.card import CONFIG, WEIGHTS, RouterCard, read_card
from edgewise.routers.untrained import Constant

ROUTERS: Registry[type[Router]] = Registry(
    "router",
    "edgewise.routers",
    {
        "random": "edgewise.routers.untrained:Random",
        "max-prob": "edgewise.routers.untrained:MaxProb",
        "margin": "edgewise.routers.untrained:Margin",
        "entropy": "edgewise.routers.untrained:Entropy",
        "mlp": "edgewise.routers.mlp:Mlp",
    },
    wanted=("score",),
    code=True,
)
"""The registered kinds of routers by name."""
_CONSTANT = "constant:"


def is_router(name: str) -> bool:
    """Whether `name` is a router that needs no checkpoint, such as "entropy" or `file.py:Class`.

    Imports its code. Raises `UsageError` if that fails.
    """
    return name.startswith(_CONSTANT) or (name in ROUTERS and not is_trained(name))


def is_trained(kind: str) -> bool:
    """Whether routers of `kind` need a checkpoint. `UsageError` if its class cannot be loaded."""
    return hasattr(ROUTERS.load(kind), "load")


def runs_code(name: str) -> bool:
    """Whether `name` is code (`module:Class`, `file.py:Class`) or a folder whose card names code.

    Raises `UsageError` if the folder has no valid card, or if `name` also fits a model on the hub.
    """
    if is_code(name):
        return True
    folder = local_folder(name)
    return folder is not None and is_code(read_card(folder).kind)


def router_named(name: str) -> Router:
    """Return a router that needs no checkpoint. `UsageError` if unknown, trained or broken."""
    if name.startswith(_CONSTANT):
        return _constant(name)
    if name not in ROUTERS:
        raise UsageError(
            f"There is no router {name!r}",
            hint=did_you_mean(
                name,
                ["bundled", *ROUTERS.names()],
                "name a checkpoint's folder, module:Class, ./file.py:Class, constant:VALUE, or "
                f"one of auto, bundled, {', '.join(ROUTERS.names())}",
            ),
            setting="router",
        )
    if is_trained(name):
        raise UsageError(
            f"A router of the kind {name!r} is trained",
            hint="name the folder of a checkpoint of this kind",
            setting="router",
        )
    return _made(name, ROUTERS.load(name))


def router_of(card: RouterCard, folder: Path) -> Router:
    """Return a checkpoint's router; it may not fit the edge model. `UsageError` if it is broken."""
    name = kind_beside(card.kind, folder)
    if not is_trained(name):
        return router_named(name)
    kind = cast(type[Trained], ROUTERS.load(name))
    return _made(name, lambda: kind.load(card, folder))


def kind_beside(kind: str, folder: Path) -> str:
    """Return a card's `kind` as a name to load: `file.py:Class` becomes `FOLDER/file.py:Class`."""
    file = code_file(kind)
    return kind if file is None else f"{folder / file}{kind[len(file) :]}"


def identity_named(name: str) -> str:
    """Return a SHA-256 (hex) of the name and the code of a router that has no checkpoint."""
    source = "" if name.startswith(_CONSTANT) else ROUTERS.source(name)
    return _digest(name.encode(), source.encode())


def identity_of(card: RouterCard, folder: Path) -> str:
    """Return a SHA-256 (hex) of a checkpoint's card, weights and code, equal for its copies."""
    weights = folder / WEIGHTS
    held = weights.read_bytes() if weights.is_file() else b""
    source = ROUTERS.source(kind_beside(card.kind, folder))
    return _digest((folder / CONFIG).read_bytes(), held, source.encode())


def _digest(*parts: bytes) -> str:
    # Each by itself first, so that no bytes can move from one part into the next.
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _made(name: str, make: Callable[[], Router]) -> Router:
    try:
        router = make()
    except EdgewiseError:
        raise
    # Others' code may raise anything.
    except Exception as error:
        raise UsageError(
            f"The router {name!r} cannot be made ({type(error).__name__}: {error})",
            hint="repair its class",
        ) from error
    return checked_router(name, router)


def checked_router(name: str, router: Router) -> Router:
    """Return `router` unchanged; `UsageError`, which calls it `name`, if it is no `Router`."""
    needs, top = (getattr(router, attribute, None) for attribute in ("needs", "top"))
    if isinstance(router, type) or not callable(getattr(router, "score", None)):
        raise UsageError(
            f"{name!r} is not a router", hint="give an object with score, needs and top"
        )
    if not isinstance(needs, Needs) or not isinstance(top, int) or top < 0:
        raise UsageError(
            f"The router {name!r} does not say what it reads",
            hint="give it needs, of the type Needs, and top, a number of ids",
        )
    return router


def _constant(name: str) -> Router:
    with suppress(ValueError):
        if 0 <= (value := float(name.removeprefix(_CONSTANT))) <= 1:
            return Constant(value)
    raise UsageError(
        f"{name!r} is not a router",
        hint="give a value from 0 to 1, such as constant:0.5",
        setting="router",
    )
