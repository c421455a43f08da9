"""`edgewise gateway`: serve many devices in front of your engines; look after their keys."""

import asyncio
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from edgewise.cli import render
from edgewise.cli.gateway_keys import keys_app
from edgewise.cli.options import everything_but, takes
from edgewise.errors import UsageError
from edgewise.gateway.keys import Keys
from edgewise.settings import Settings

app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    help="Serve many devices in front of your engines: gateway --engine URL --keys FILE.",
)
app.add_typer(keys_app, name="keys")

LOOPBACK = ("127.0.0.1", "::1", "localhost")


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
    limits: Annotated[
        str | None,
        typer.Option(help="What keys use is kept in this file, redis://... or memory."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8400,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="TLS private key, PEM.")] = None,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions held at most.")] = 20_000,
    session_ids: Annotated[
        int, typer.Option(min=1, help="Token ids held by all sessions, at most.")
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
    _require_guarded(host, keys, certificate, private_key)
    _require_extra()
    plan = _Plan(
        engines=engine,
        kind=engine_kind,
        key=chosen.cloud_key,
        keys=keys,
        limits=limits,
        host=host,
        port=port,
        certificate=certificate,
        private_key=private_key,
    )
    asyncio.run(_served(plan, _Limits(sessions, session_ids, idle, concurrency, queue)))


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is served, where and to whom."""

    engines: list[str]
    kind: str
    key: str | None
    keys: Path | None
    limits: str | None
    host: str
    port: int
    certificate: Path | None
    private_key: Path | None

    @property
    def told(self) -> str:
        """One line."""
        scheme = "https" if self.certificate else "http"
        return f"gateway for {', '.join(self.engines)} at {scheme}://{self.host}:{self.port}"


class _Limits(NamedTuple):
    """As the flags of these names."""

    sessions: int
    session_ids: int
    idle: float
    concurrency: int
    queue: int


async def _served(plan: _Plan, limits: _Limits) -> None:
    """Until a signal ends it."""
    from edgewise.gateway.app import Gateway
    from edgewise.gateway.fleet import Fleet
    from edgewise.gateway.limit_stores import limits_at
    from edgewise.gateway.server import engines_at, log_as_json, serve
    from edgewise.gateway.sessions import Sessions

    log_as_json()
    keys, used = Keys(plan.keys), limits_at(plan.limits, plan.keys)
    engines = await engines_at(plan.engines, key=plan.key, kind=plan.kind)
    fleet = Fleet(engines, concurrency=limits.concurrency, queue=limits.queue)
    # Here, so that a problem is a sentence and not a failed start of the server.
    await fleet.start()
    await used.open()
    held = Sessions(most=limits.sessions, most_ids=limits.session_ids, idle=limits.idle)
    render.note(plan.told)
    await serve(
        Gateway(fleet, keys, held, used),
        host=plan.host,
        port=plan.port,
        certificate=plan.certificate,
        private_key=plan.private_key,
    )


def _require_guarded(
    host: str, keys: Path | None, certificate: Path | None, private_key: Path | None
) -> None:
    if keys is None and host not in LOOPBACK:
        raise UsageError(
            f"Without keys anybody who reaches {host} could use the engine; give --keys FILE."
        )
    if (certificate is None) != (private_key is None):
        raise UsageError("TLS needs both --certificate and --private-key.")
    for path in (certificate, private_key):
        if path is not None and not path.is_file():
            raise UsageError(f"There is no file {str(path)!r}.")
    if keys is not None and not keys.exists():
        raise UsageError(
            f"There is no file {str(keys)!r}; make one with edgewise gateway keys add."
        )


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
