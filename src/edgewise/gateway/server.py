"""A gateway's process: the engines behind it, where it listens, a graceful end."""

import socket
import ssl
from collections.abc import Sequence

from edgewise.engines.base import Engine, parallel
from edgewise.engines.registry import AUTO, GATEWAY, engine_at, engine_by_ids, model_for
from edgewise.errors import UsageError
from edgewise.gateway.app import DRAIN_SECONDS, Gateway
from edgewise.listening.origins import ANY
from edgewise.listening.server import Listener
from edgewise.wire.protocol import MAX_FRAME

BUNDLED = "bundled"


async def engines_at(
    addresses: Sequence[str], *, key: str | None, kind: str = AUTO, model: str | None = None
) -> list[Engine]:
    """The engines behind the addresses, or the bundled one; `kind` is a name of `ENGINES` or auto.

    Where they serve several models, `model` names one. Raises a `CloudError`, or `UsageError`.
    """
    if BUNDLED in addresses:
        if len(addresses) > 1 or kind != AUTO or model is not None:
            raise UsageError(
                "The bundled engine is the only one, of one kind, and serves one model",
                hint="name nothing beside it",
                setting="engine",
            )
        from edgewise.gateway.bundled import BundledEngine

        return [BundledEngine()]
    if kind != AUTO:
        engine_by_ids(kind)
    return await parallel(*(_made(address, key, kind, model) for address in addresses))


async def _made(address: str, key: str | None, kind: str, model: str | None) -> Engine:
    name = await engine_at(address, key=key, model=model) if kind == AUTO else kind
    if name == GATEWAY:
        raise UsageError(f"{address!r} is a gateway itself", hint="name the engine behind it")
    make = engine_by_ids(name)
    return make(address, key=key, **model_for(make, name, model))


async def serve(
    gateway: Gateway,
    listening: socket.socket,
    *,
    connections: int,
    tls: ssl.SSLContext | None = None,
    hosts: Sequence[str] = (ANY,),
) -> None:
    """Until SIGTERM or SIGINT: then no new sessions, and consults in flight end first.

    Requests must be addressed to one of `hosts`.
    """
    await Listener(
        gateway.app(hosts=hosts),
        listening,
        connections=connections,
        tls=tls,
        max_message=MAX_FRAME,
        grace=DRAIN_SECONDS,
        drain=gateway.drain,
    ).listen()
