"""A gateway's process: uvicorn around the application, logs, a graceful end."""

import asyncio
import logging
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import structlog
import uvicorn

from edgewise.engines.base import Engine
from edgewise.engines.detect import ENGINES, EngineName, found_at
from edgewise.errors import UsageError
from edgewise.gateway.app import Gateway
from edgewise.wire.protocol import MAX_FRAME

DRAIN_SECONDS = 20
"""How long consults in flight may take to end after SIGTERM."""


async def engine_at(address: str, *, key: str | None, engine: EngineName) -> Engine:
    """The engine behind an address, or the bundled one. Raises a `CloudError` or `UsageError`."""
    if address == "bundled":
        from edgewise.gateway.bundled import BundledEngine

        return BundledEngine()
    name = await found_at(address, key=key) if engine == "auto" else engine
    if name == "gateway":
        raise UsageError(f"{address!r} is a gateway itself; name the engine behind it.")
    return ENGINES[name](address, key=key)


def log_as_json() -> None:
    """A JSON object a line on stderr."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
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
