"""`edgewise gateway`: serve many devices in front of your engines; look after their keys."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise.cli import render
from edgewise.cli.listening import CertificateFile, ListenFlags, Most, PerPeer, PrivateKeyFile
from edgewise.cli.options import everything_but, takes
from edgewise.errors import UsageError
from edgewise.gateway.keys import Keys, add_key, read_keys, revoke_key
from edgewise.listening.logs import Level
from edgewise.listening.sockets import LOOPBACK, address_of, is_loopback, listen
from edgewise.settings import Settings

if TYPE_CHECKING:
    from edgewise.listening.config import Door

app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    help="Serve many devices in front of your engines: gateway --engine URL --keys FILE.",
)
keys_app = typer.Typer(no_args_is_help=True, help="Add, list and revoke keys.")
app.add_typer(keys_app, name="keys")

METRICS_CONNECTIONS = 32

MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port of /metrics alone, which is then not at --port."),
]
MetricsHost = Annotated[
    str | None, typer.Option(help="Address that --metrics-port listens on; default 127.0.0.1.")
]
LogLevel = Annotated[Level, typer.Option(help="What is logged: debug, info, warning or error.")]

File = Annotated[Path, typer.Option("--keys", help="File of keys.")]


# A device's settings are none of its: clients are named by keys, engines by addresses.
@app.callback()
@takes(reads=["cloud_key"], unaffected=everything_but("cloud_key"))
def gateway(
    context: typer.Context,
    chosen: Settings,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="An engine's URL, or bundled; repeat it for replicas of one model."),
    ] = None,
    engine_kind: Annotated[
        str, typer.Option(help="What the engines are: llama-server, vllm, sglang; auto finds out.")
    ] = "auto",
    keys: Annotated[Path | None, typer.Option(help="File of keys; see gateway keys add.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8400,
    certificate: CertificateFile = None,
    private_key: PrivateKeyFile = None,
    connections: Most = None,
    connections_per_peer: PerPeer = 0,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    log_level: LogLevel = "info",
    sessions: Annotated[int, typer.Option(min=1, help="Sessions held at most.")] = 20_000,
    session_ids: Annotated[
        int, typer.Option(min=1, help="Token ids held by sessions without a device, at most.")
    ] = 20_000_000,
    idle: Annotated[
        float, typer.Option(min=0, help="Seconds that a session waits for its device.")
    ] = 300.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Consults at one engine at a time.")] = 64,
    queue: Annotated[
        int, typer.Option(min=0, help="Consults that may wait for an engine; more are refused.")
    ] = 256,
) -> None:
    """Run a gateway in front of one or more engines that serve one model."""
    if context.invoked_subcommand is not None:
        return
    if not engine:
        raise UsageError("A gateway needs an engine; name one with --engine URL, or bundled.")
    if metrics_host is not None and metrics_port is None:
        raise UsageError("--metrics-host is where --metrics-port listens; give that too.")
    _require_guarded(host, keys)
    _require_extra()
    listens = ListenFlags(certificate, private_key, connections, connections_per_peer)
    listens.require_whole()
    plan = _Plan(
        engines=engine,
        kind=engine_kind,
        key=chosen.cloud_key,
        keys=keys,
        host=host,
        listens=listens,
        limits=_Limits(sessions, session_ids, idle, concurrency, queue),
    )
    _run(plan, port, metrics_host or LOOPBACK[0], metrics_port, log_level)


class _Limits(NamedTuple):
    """As the flags of these names."""

    sessions: int
    session_ids: int
    idle: float
    concurrency: int
    queue: int


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is served, with what and to whom."""

    engines: list[str]
    kind: str
    key: str | None
    keys: Path | None
    host: str
    listens: ListenFlags
    limits: _Limits

    @property
    def hosts(self) -> Sequence[str]:
        """What requests may be addressed to; with keys any, since no page knows one."""
        return ("*",) if self.keys else (*LOOPBACK, self.host)

    @property
    def reserve(self) -> int:
        """Open files for consults at engines, and for metrics."""
        return len(self.engines) * self.limits.concurrency + METRICS_CONNECTIONS


def _run(plan: _Plan, port: int, metrics_host: str, metrics_port: int | None, level: Level) -> None:
    """Listen first: it takes longer to look at engines than to find out that a port is taken."""
    from edgewise.listening.config import Door
    from edgewise.listening.logs import json_lines
    from edgewise.listening.seats import Seats

    with ExitStack() as stack:
        listening = stack.enter_context(listen(plan.host, port))
        door, metrics = plan.listens.door(listening, reserve=plan.reserve), None
        at = {"at": address_of(listening, plan.host, tls=plan.listens.tls)}
        if metrics_port is not None:
            beside = stack.enter_context(listen(metrics_host, metrics_port))
            metrics = Door(beside, Seats(METRICS_CONNECTIONS))
            at["metrics"] = address_of(beside, metrics_host, tls=False) + "/metrics"
        stack.enter_context(json_lines(level))
        asyncio.run(_served(plan, door, metrics, at))


async def _served(plan: _Plan, door: "Door", metrics: "Door | None", at: Mapping[str, str]) -> None:
    """Until a signal ends it."""
    import structlog

    from edgewise.gateway.app import Gateway
    from edgewise.gateway.fleet import Fleet
    from edgewise.gateway.server import engines_at, serve
    from edgewise.gateway.sessions import Sessions

    limits = plan.limits
    engines = await engines_at(plan.engines, key=plan.key, kind=plan.kind)
    fleet = Fleet(engines, concurrency=limits.concurrency, queue=limits.queue)
    # Here, so that a problem is a sentence and not a failed start of the server.
    await fleet.start()
    held = Sessions(most=limits.sessions, most_ids=limits.session_ids, idle=limits.idle)
    structlog.get_logger("edgewise.gateway").info("listening", engines=plan.engines, **at)
    gateway = Gateway(fleet, Keys(plan.keys), held)
    await serve(gateway, door, metrics=metrics, hosts=plan.hosts)


def _require_guarded(host: str, keys: Path | None) -> None:
    if keys is None and not is_loopback(host):
        raise UsageError(
            f"Without keys anybody who reaches {host} could use the engine; give --keys FILE."
        )
    if keys is not None and not keys.exists():
        raise UsageError(
            f"There is no file {str(keys)!r}; make one with edgewise gateway keys add."
        )


@keys_app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Whose key it is; shown in metrics and logs.")],
    file: File,
    asks_per_second: Annotated[float, typer.Option(help="Consults a second; 0: no limit.")] = 50.0,
    tokens_per_day: Annotated[int, typer.Option(help="Cloud tokens a day; 0: no limit.")] = 0,
    sessions: Annotated[int, typer.Option(help="Devices at a time; 0: no limit.")] = 16,
) -> None:
    """Make a key, print it once, keep its hash."""
    secret = add_key(
        file,
        name,
        asks_per_second=asks_per_second,
        tokens_per_day=tokens_per_day,
        sessions=sessions,
    )
    print(secret)
    render.note("The device needs it as EDGEWISE_CLOUD_KEY; it cannot be shown again.")


@keys_app.command("list")
def list_keys(file: File) -> None:
    """Names, limits and dates; never the keys."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "created", "asks/s", "tokens/day", "sessions"):
        table.add_column(column)
    for key in read_keys(file):
        limits = (key.asks_per_second, key.tokens_per_day, key.sessions)
        shown = (f"{limit:g}" if limit else "no limit" for limit in limits)
        table.add_row(render.printable(key.name), key.created, *shown)
    render.out.print(table)


@keys_app.command()
def revoke(name: Annotated[str, typer.Argument(help="Whose key.")], file: File) -> None:
    """Stop a key from working, within a second."""
    revoke_key(file, name)


def _require_extra() -> None:
    try:
        import starlette
        import uvicorn
        import websockets

        del starlette, uvicorn, websockets
    except ImportError as error:
        raise UsageError(
            f"A gateway needs {error.name}: pip install 'edgewise[gateway]'."
        ) from error
