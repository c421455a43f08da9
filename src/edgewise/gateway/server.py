"""A gateway's process: uvicorn around the application, logs, a graceful end."""

import asyncio
import logging
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog
import uvicorn

from edgewise.cloud.named import AUTO
from edgewise.engines.base import Engine, side_by_side
from edgewise.engines.detect import GATEWAY, found_at
from edgewise.engines.named import ENGINES
from edgewise.errors import UsageError
from edgewise.gateway.app import Gateway
from edgewise.wire.protocol import MAX_FRAME

BUNDLED = "bundled"
DRAIN_SECONDS = 20
"""How long consults in flight may take to end after SIGTERM."""


async def engines_at(
    addresses: Sequence[str], *, key: str | None, kind: str = AUTO
) -> list[Engine]:
    """The engines behind the addresses, or the bundled one; `kind` is a name of `ENGINES` or auto.

    Raises a `CloudError`, or `UsageError` for another name.
    """
    if kind != AUTO:
        ENGINES.load(kind)
    async with side_by_side() as looks:
        found = [looks.begin(_kind_at(address, key, kind)) for address in addresses]
    kinds = [task.result() for task in found]
    return [_engine(*one, key) for one in zip(addresses, kinds, strict=True)]


async def _kind_at(address: str, key: str | None, kind: str) -> str:
    if address == BUNDLED:
        return BUNDLED
    name = await found_at(address, key=key) if kind == AUTO else kind
    if name == GATEWAY:
        raise UsageError(f"{address!r} is a gateway itself", hint="name the engine behind it")
    return name


def _engine(address: str, kind: str, key: str | None) -> Engine:
    if kind == BUNDLED:
        from edgewise.gateway.bundled import BundledEngine

        return BundledEngine()
    return ENGINES.load(kind)(address, key=key)


def log_as_json() -> None:
    """A JSON object a line on stderr."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


async def serve(
    gateway: Gateway, *, host: str, port: int, certificate: Path | None, private_key: Path | None
) -> None:
    """Until SIGTERM or SIGINT: then no new sessions, and consults in flight end first."""
    config = uvicorn.Config(
        gateway.app(),
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: asyncio.ensure_future(_stop(gateway, server)))
    await server.serve()


class _Server(uvicorn.Server):
    """Leaves the signals to `serve`, which drains first."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Nothing: they are handled already."""
        yield


async def _stop(gateway: Gateway, server: uvicorn.Server) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            await gateway.drain()
    except TimeoutError:
        structlog.get_logger("edgewise.gateway").warning("drain took too long")
    server.should_exit = True
