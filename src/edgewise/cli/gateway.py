"""`edgewise gateway`: serve many devices in front of your engines."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.addresses import is_url, with_scheme
from edgewise.cli import listening as flags
from edgewise.cli.keys import Limits
from edgewise.cli.options import MACHINE, flags_of, takes
from edgewise.cloud.hosts import bearer
from edgewise.errors import UsageError
from edgewise.keys.keys import Keys
from edgewise.listening.logs import Level
from edgewise.listening.sockets import LOOPBACK
from edgewise.settings import NAMES, Settings, require_default

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from edgewise.engines.base import Engine
    from edgewise.gateway.app import Gateway
    from edgewise.gateway.browser_page import PageModel

Engines = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL|MODEL",
        help="An engine's URL, repeatable for replicas; or a GGUF, owner/repo, bundled.",
    ),
]
EngineKind = Annotated[str, typer.Option(help="Engine type, such as vllm; auto: detect it.")]
SessionIds = Annotated[int, typer.Option(min=1, help="Maximum token ids of all sessions.")]
Idle = Annotated[float, typer.Option(min=0, help="Seconds a session is kept after a disconnect.")]
Queue = Annotated[
    int, typer.Option(min=0, help="Consults that may wait for an engine; more are refused.")
]
Slots = Annotated[
    int | None,
    typer.Option(min=1, max=256, help="Sessions whose prefixes a GGUF here keeps.  [default: 4]"),
]
Origin = Annotated[
    list[str] | None,
    typer.Option(metavar="ORIGIN", help="Allowed origin of web pages; repeatable."),
]
PageFlag = Annotated[
    bool, typer.Option("--page", help="Serve a page that decodes in the browser, at /page/.")
]
PageModelAddress = Annotated[
    str | None,
    typer.Option(help="The page's edge model: bundled (default), smollm2, a GGUF file, ..."),
]
LogLevel = Annotated[Level, typer.Option(help="Log level.")]


# It has no settings of a device: clients are named by keys, engines by addresses.
@takes("cloud_model", *MACHINE, reads=["cloud_key"], unaffected=NAMES)
def gateway(
    chosen: Settings,
    engine: Engines = None,
    engine_kind: EngineKind = "auto",
    keys: Annotated[Path | None, typer.Option(help="Key file; see keys add.")] = None,
    limits: Limits = None,
    host: flags.Host = "127.0.0.1",
    port: flags.Port = 8400,
    certificate: flags.Certificate = None,
    private_key: flags.PrivateKey = None,
    origin: Origin = None,
    page: PageFlag = False,
    page_model: PageModelAddress = None,
    connections: flags.Connections = None,
    log_level: LogLevel = "info",
    sessions: Annotated[int, typer.Option(min=1, help="Maximum sessions.")] = 20_000,
    session_ids: SessionIds = 20_000_000,
    idle: Idle = 300.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent consults per engine.")] = 64,
    queue: Queue = 256,
    slots: Slots = None,
) -> None:
    """Serve many devices in front of your engines: gateway --engine URL --keys FILE."""
    engines = _addresses(engine or (), slots)
    flags.require_guarded(host, keys, ways="--keys FILE")
    flags.require_extra("gateway", "starlette", "uvicorn", "websockets")
    origins = [_named_origin(one) for one in origin or ()]
    model = model_of_page(page_model, page=page)
    from edgewise.gateway.app import Gateway
    from edgewise.gateway.browser_page import Page
    from edgewise.gateway.fleet import Fleet
    from edgewise.gateway.sessions import Sessions
    from edgewise.keys.limit_stores import limits_at
    from edgewise.listening.logs import log_lines

    async def serve(listening: flags.Listening) -> None:
        known, used = Keys(keys), limits_at(limits, keys)
        opened = await _opened(engines, engine_kind, chosen, slots)
        fleet = Fleet(opened, concurrency=concurrency, queue=queue)
        held = Sessions(most=sessions, most_ids=session_ids, idle=idle)
        # With keys any name will do, since no page of a browser knows a key.
        hosts = ("*",) if keys else (*LOOPBACK, host)
        shown = Page(model, fleet, keys=keys is not None) if model else None
        # Here, so that a problem is a sentence and not a failed start of the server.
        await fleet.start()
        if shown is not None:
            shown.require_same_vocabulary()
        made = Gateway(fleet, known, held, used)
        app = made.app(hosts=hosts, origins=origins, page=shown)
        await _listen(made, app, listening, engines)

    # Each consult may need a connection of its own to its engine.
    reserve = len(engines) * concurrency
    tls = (certificate, private_key)
    with (
        flags.listening_at(host, port, tls, connections, reserve=reserve) as listening,
        log_lines("json", log_level),
    ):
        asyncio.run(serve(listening))


async def _opened(
    addresses: Sequence[str], kind: str, chosen: Settings, slots: int | None
) -> "list[Engine]":
    from edgewise.edge.base import EdgeOptions
    from edgewise.gateway.fleet import engines_at
    from edgewise.gateway.local import SLOTS

    key, model = bearer(chosen, "cloud_key"), chosen.cloud_model
    options = EdgeOptions(
        context=chosen.ctx,
        threads=chosen.threads,
        gpu_layers=chosen.gpu_layers,
        slots=slots or SLOTS,
    )
    return await engines_at(addresses, key=key, kind=kind, model=model, options=options)


async def _listen(
    gateway: "Gateway", app: "Starlette", listening: flags.Listening, engines: Sequence[str]
) -> None:
    import structlog

    from edgewise.listening.server import Listener
    from edgewise.wire.protocol import MAX_FRAME

    await gateway.limits.open()
    log = structlog.get_logger("edgewise.gateway")
    log.info("listening", engines=engines, at=listening.url)
    await Listener(
        app, listening.socket, **listening.limits, max_message=MAX_FRAME, drain=gateway.drain
    ).listen()


def _addresses(engines: Sequence[str], slots: int | None) -> list[str]:
    """Return the engines' addresses (see `with_scheme`). Raises `UsageError` without any."""
    if not engines:
        raise UsageError("A gateway needs an engine; name one with --engine URL, or a GGUF.")
    addresses = [with_scheme(one) for one in engines]
    if all(map(is_url, addresses)):
        why = "applies only to a model in the gateway, not at a URL"
        require_default(flags_of(MACHINE), MACHINE, why)
        if slots is not None:
            raise UsageError(f"--slots {why}", hint="leave it out")
    return addresses


def _named_origin(origin: str) -> str:
    """Return `origin` as browsers spell it. Raises `UsageError` for an invalid one, and for *."""
    from edgewise.listening.origins import ANY, require_origin

    if origin == ANY:
        raise UsageError(
            "* would allow pages of every origin", hint="name each origin", setting="origin"
        )
    return require_origin(origin, setting="origin")


def model_of_page(address: str | None, *, page: bool) -> "PageModel | None":
    """Return the edge model that the page (`--page`) runs in the browser; None without `page`.

    The model at `address` (None: the bundled one) is loaded once, to read its vocabulary. Raises
    `UsageError` if it cannot be loaded, or for an `address` without `page`.
    """
    if address is not None and not page:
        raise UsageError("--page-model needs --page; give both.")
    if not page:
        return None
    from edgewise.addresses import resolve
    from edgewise.gateway.browser_page import PageModel
    from edgewise.opening import DEFAULT_SHARE, known_router, open_edge
    from edgewise.wire.protocol import tokenizer_fingerprint

    address = address or "bundled"
    try:
        file = resolve(address, "edge")
        settings = Settings(edge=address if address == "bundled" else str(file))
        with closing(open_edge(settings)) as edge:
            # One that reads no hidden states: a browser's engine hands out none.
            router = known_router(edge)
            tokenizer = tokenizer_fingerprint(edge.tokenizer)
            # Whoever opens the page is not told where the file lies.
            name = address if address == "bundled" else edge.name
    except UsageError as error:
        error.setting = "page_model"  # and not the setting of a device
        raise
    return PageModel(name, file, tokenizer, router, DEFAULT_SHARE)
