"""`edgewise gateway`: serve many devices in front of your engines; look after their keys."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise import settings
from edgewise.cli import render
from edgewise.errors import UsageError
from edgewise.gateway.keys import Keys, add_key, read_keys, revoke_key

app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    help="Serve many devices in front of your engines: gateway --engine URL --keys FILE.",
)
keys_app = typer.Typer(no_args_is_help=True, help="Add, list and revoke keys.")
app.add_typer(keys_app, name="keys")

LOOPBACK = ("127.0.0.1", "::1", "localhost")

File = Annotated[Path, typer.Option("--keys", help="File of keys.")]


@app.callback()
def gateway(
    context: typer.Context,
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
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="TLS private key, PEM.")] = None,
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
    _require_extra()
    from edgewise.gateway.app import Gateway
    from edgewise.gateway.fleet import Fleet
    from edgewise.gateway.server import engines_at, log_as_json, serve
    from edgewise.gateway.sessions import Sessions

    chosen = settings.load({})
    named = Keys(keys)

    async def run() -> None:
        engines = await engines_at(engine, key=chosen.cloud_key, kind=engine_kind)
        fleet = Fleet(engines, concurrency=concurrency, queue=queue)
        # Here, so that a problem is a sentence and not a failed start of the server.
        await fleet.start()
        held = Sessions(most=sessions, most_ids=session_ids, idle=idle)
        scheme = "https" if certificate else "http"
        render.note(f"gateway for {', '.join(engine)} at {scheme}://{host}:{port}")
        await serve(
            Gateway(fleet, named, held),
            host=host,
            port=port,
            certificate=certificate,
            private_key=private_key,
        )

    log_as_json()
    asyncio.run(run())


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
