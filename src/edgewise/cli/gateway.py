"""`edgewise gateway`: serve many devices in front of your engines."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from edgewise.addresses import is_url, with_scheme
from edgewise.cli.keys import Limits, require_keys
from edgewise.cli.listening import CertificateFile, ListenFlags, Most, PrivateKeyFile, require_extra
from edgewise.cli.options import everything_but, takes
from edgewise.cloud.hosts import cloud_key
from edgewise.errors import UsageError
from edgewise.keys.keys import Keys
from edgewise.listening.logs import Level
from edgewise.listening.sockets import LOOPBACK, address_of, is_loopback, listen
from edgewise.settings import Settings

if TYPE_CHECKING:
    import ssl

Engines = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL", help="An engine's URL, or bundled; repeat it for replicas of one model."
    ),
]
EngineKind = Annotated[str, typer.Option(help="The engines' kind, such as vllm; auto finds out.")]
SessionIds = Annotated[int, typer.Option(min=1, help="Token ids held by all sessions, at most.")]
Idle = Annotated[float, typer.Option(min=0, help="Seconds that a session waits for its device.")]
Queue = Annotated[
    int, typer.Option(min=0, help="Consults that may wait for an engine; more are refused.")
]
LogLevel = Annotated[Level, typer.Option(help="What is logged: debug, info, warning or error.")]


# It has no settings of a device: clients are named by keys, engines by addresses.
@takes("cloud_model", reads=["cloud_key"], unaffected=everything_but("cloud_model", "cloud_key"))
def gateway(
    chosen: Settings,
    engine: Engines = None,
    engine_kind: EngineKind = "auto",
    keys: Annotated[Path | None, typer.Option(help="File of keys; see keys add.")] = None,
    limits: Limits = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8400,
    certificate: CertificateFile = None,
    private_key: PrivateKeyFile = None,
    connections: Most = None,
    log_level: LogLevel = "info",
    sessions: Annotated[int, typer.Option(min=1, help="Sessions held at most.")] = 20_000,
    session_ids: SessionIds = 20_000_000,
    idle: Idle = 300.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Consults at one engine at a time.")] = 64,
    queue: Queue = 256,
) -> None:
    """Serve many devices in front of your engines: gateway --engine URL --keys FILE."""
    if not engine:
        raise UsageError("A gateway needs an engine; name one with --engine URL, or bundled.")
    _require_guarded(host, keys)
    require_extra("gateway", "starlette", "uvicorn", "websockets")
    listens = ListenFlags(certificate, private_key, connections)
    listens.require_whole()
    plan = _Plan(
        engines=[_address(one) for one in engine],
        kind=engine_kind,
        key=cloud_key(chosen),
        model=chosen.cloud_model,
        keys=keys,
        limits=limits,
        # With keys any name will do, since no page of a browser knows a key.
        hosts=("*",) if keys else (*LOOPBACK, host),
        sessions=(sessions, session_ids, idle),
        consults=(concurrency, queue),
    )
    with ExitStack() as stack:
        # Before the engines are looked at, which takes longer.
        listening = stack.enter_context(listen(host, port))
        most, secured = listens.opened(reserve=len(engine) * concurrency)
        at = address_of(listening, host, tls=listens.tls)
        _run(plan, at, log_level, (listening, most, secured))


class _Plan(NamedTuple):
    """What is served, with what and to whom: as the flags of these names."""

    engines: list[str]
    kind: str
    key: str | None
    model: str | None
    keys: Path | None
    limits: str | None
    hosts: Sequence[str]
    sessions: tuple[int, int, float]
    consults: tuple[int, int]


def _run(
    plan: _Plan,
    at: str,
    level: Level,
    where: "tuple[socket.socket, int, ssl.SSLContext | None]",
) -> None:
    """Until a signal ends it."""
    import structlog

    from edgewise.gateway.app import DRAIN_SECONDS, Gateway
    from edgewise.gateway.fleet import Fleet, engines_at
    from edgewise.gateway.sessions import Sessions
    from edgewise.keys.limit_stores import limits_at
    from edgewise.listening.logs import log_lines
    from edgewise.listening.server import Listener
    from edgewise.wire.protocol import MAX_FRAME

    async def served() -> None:
        keys, limits = Keys(plan.keys), limits_at(plan.limits, plan.keys)
        engines = await engines_at(plan.engines, key=plan.key, kind=plan.kind, model=plan.model)
        concurrency, queue = plan.consults
        fleet = Fleet(engines, concurrency=concurrency, queue=queue)
        most, most_ids, idle = plan.sessions
        sessions = Sessions(most=most, most_ids=most_ids, idle=idle)
        gateway = Gateway(fleet, keys, sessions, limits)
        # Here, so that a problem is a sentence and not a failed start of the server.
        await fleet.start()
        await limits.open()
        structlog.get_logger("edgewise.gateway").info("listening", engines=plan.engines, at=at)
        listening, connections, tls = where
        await Listener(
            gateway.app(hosts=plan.hosts),
            listening,
            connections=connections,
            tls=tls,
            max_message=MAX_FRAME,
            grace=DRAIN_SECONDS,
            drain=gateway.drain,
        ).listen()

    with log_lines("json", level):
        asyncio.run(served())


def _address(engine: str) -> str:
    """A URL as for a cloud: localhost:8080 is one. Raises `UsageError`."""
    named = with_scheme(engine)
    if not is_url(named) and named != "bundled":
        raise UsageError(
            f"{engine!r} is not an engine's address",
            hint="name an engine's URL, or bundled",
            setting="engine",
        )
    return named


def _require_guarded(host: str, keys: Path | None) -> None:
    if keys is None and not is_loopback(host):
        raise UsageError(
            f"Without keys anybody who reaches {host} could use the engine; give --keys FILE."
        )
    if keys is not None:
        require_keys(keys)
