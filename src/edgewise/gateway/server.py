"""A gateway's process: the engines behind it, where it listens, a graceful end."""

import asyncio
import socket
import ssl
from collections.abc import Sequence

import structlog

from edgewise.engines.base import Engine, parallel
from edgewise.engines.registry import AUTO, GATEWAY, engine_at, engine_by_ids, model_for
from edgewise.errors import UsageError
from edgewise.gateway.app import Gateway
from edgewise.listening.origins import ANY
from edgewise.listening.server import Listener
from edgewise.wire.protocol import MAX_FRAME

BUNDLED = "bundled"
DRAIN_SECONDS = 20
"""How long consults in flight may take to end after SIGTERM."""


async def engines_at(
    addresses: Sequence[str], *, key: str | None, kind: str = AUTO, model: str | None = None
) -> list[Engine]:
    """The engines behind the addresses, or the bundled one; `kind` is a name of `ENGINES` or auto.

    Where they serve several models, `model` names one. Raises a `CloudError`, or `UsageError` for
    another name, or one beside the bundled engine.
    """
    if model is not None and BUNDLED in addresses:
        raise UsageError(
            "The bundled engine serves one model", hint="leave it out", setting="cloud_model"
        )
    if kind != AUTO:
        engine_by_ids(kind)
        if BUNDLED in addresses:
            raise UsageError(
                f"The bundled engine is no {kind}", hint="leave the kind out", setting="engine_kind"
            )
    kinds = await parallel(*(_kind_at(address, key, kind, model) for address in addresses))
    return [_engine(*one, key, model) for one in zip(addresses, kinds, strict=True)]


async def _kind_at(address: str, key: str | None, kind: str, model: str | None) -> str:
    if address == BUNDLED:
        return BUNDLED
    name = await engine_at(address, key=key, model=model) if kind == AUTO else kind
    if name == GATEWAY:
        raise UsageError(f"{address!r} is a gateway itself", hint="name the engine behind it")
    return name


def _engine(address: str, kind: str, key: str | None, model: str | None) -> Engine:
    if kind == BUNDLED:
        from edgewise.gateway.bundled import BundledEngine

        return BundledEngine()
    make = engine_by_ids(kind)
    return make(address, key=key, **model_for(make, kind, model))


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
        drain=lambda: _drain(gateway),
    ).listen()


async def _drain(gateway: Gateway) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            await gateway.drain()
    except TimeoutError:
        structlog.get_logger("edgewise.gateway").warning("drain took too long")
