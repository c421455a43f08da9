"""`edgewise serve`: OpenAI's API and a page in front of the pair."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli import render
from edgewise.cli.keys import Limits, require_keys
from edgewise.cli.listening import CertificateFile, ListenFlags, Most, PrivateKeyFile
from edgewise.cli.options import (
    COSTS,
    MACHINE,
    MODELS,
    ROUTING,
    SAMPLING,
    SERVING,
    VIEW,
    SentFile,
    SettingsWith,
    takes,
)
from edgewise.cli.serve_models import load, served_models
from edgewise.errors import UsageError
from edgewise.listening.sockets import LOOPBACK, address_of, is_loopback, listen
from edgewise.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from edgewise.listening.tls import Certificate
    from edgewise.server.callers import Callers
    from edgewise.server.models import Models

ModelFiles = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE",
        help="Serve a model by this name, with its settings in FILE; repeatable.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="EDGEWISE_API_KEY",
        show_envvar=False,
        help="Key that clients need; better in EDGEWISE_API_KEY.",
    ),
]

OPEN_FILES = 64
"""Left for the connections of each model's cloud."""


@takes(
    *(*MODELS, *VIEW, *ROUTING, *SAMPLING, *MACHINE, *COSTS, *SERVING),
    reads=["cloud_key"],
)
def serve(
    chosen: Settings,
    chosen_with: SettingsWith,
    model: ModelFiles = None,
    queue: Annotated[
        int, typer.Option(min=0, help="Answers of a model that may wait; more get a 429.")
    ] = 32,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK[0],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8300,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Origin of another page that may ask; repeatable."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="File of clients' keys, instead of one; see keys add.")
    ] = None,
    limits: Limits = None,
    api_key: ApiKey = None,
    certificate: CertificateFile = None,
    private_key: PrivateKeyFile = None,
    connections: Most = None,
    sent_file: SentFile = None,
) -> None:
    """Serve OpenAI's API and a chat page: model ids edgewise, edgewise@0.05, edgewise:edge|cloud.

    edgewise:t0.3 asks by a fixed threshold, so that answers are reproducible. What a request
    leaves out is as the flags say. With --model the names are yours.
    """
    _require_guarded(host, api_key, keys)
    _require_extra()
    callers = _callers(api_key, keys, limits)
    origins = _origins(cors_origin)
    listens = ListenFlags(certificate, private_key, connections)
    listens.require_whole()
    wanted = served_models(model or [], chosen, chosen_with)
    with ExitStack() as stack:
        # Before the models are loaded, which takes longer than finding out that a port is taken.
        listening = stack.enter_context(listen(host, port))
        most, secured = listens.opened(reserve=OPEN_FILES * len(wanted))
        models = load(
            wanted,
            stack,
            queue=queue,
            # What a key finds in a cache must not be what another asked.
            keep_prefixes=keys is None,
            sent_file=sent_file,
        )
        app = _app(models, callers, origins, host)
        where = address_of(listening, host, tls=listens.tls)
        serving = f"serving {_shown(models)} at {where} (page, /v1, /docs)"
        _run(app, (listening, most, secured), callers, lambda: render.note(serving))


def _require_guarded(host: str, api_key: str | None, keys: Path | None) -> None:
    if keys is not None and api_key is not None:
        raise UsageError("Clients show the one key or one of a file's; give --api-key or --keys.")
    if keys is None and not api_key and not is_loopback(host):
        raise UsageError(
            f"Without a key anybody who reaches {host} could use the models; give --api-key, or "
            "--keys FILE."
        )
    if keys is not None:
        require_keys(keys)


def _callers(api_key: str | None, keys: Path | None, limits: str | None) -> "Callers":
    from edgewise.keys.keys import Keys
    from edgewise.keys.limit_stores import limits_at
    from edgewise.server.callers import Callers

    return Callers(api_key=api_key, keys=Keys(keys), limits=limits_at(limits, keys))


def _shown(models: "Models") -> str:
    """The edge models, with the names that they are served under where these are the user's."""
    if not models.told_apart:
        return models.first.edge.name
    return ", ".join(f"{one.name} ({one.edge.name})" for one in models.all)


def _app(models: "Models", callers: "Callers", origins: Sequence[str], host: str) -> "FastAPI":
    from edgewise.server.app import make_app

    hosts = (*LOOPBACK, host) if is_loopback(host) else ("*",)
    return make_app(models, callers=callers, origins=origins, hosts=hosts)


def _run(
    app: "FastAPI",
    at: "tuple[socket.socket, int, Certificate | None]",
    callers: "Callers",
    ready: Callable[[], None],
) -> None:
    """Until a signal ends it."""
    from edgewise.listening.logs import plain_lines
    from edgewise.listening.server import Listener

    listening, most, certificate = at
    listener = Listener(app, listening, connections=most, certificate=certificate, ready=ready)

    async def served() -> None:
        await callers.open()
        try:
            await listener.listen()
        finally:
            await callers.close()

    with plain_lines():
        asyncio.run(served())


def _origins(given: Sequence[str] | None) -> list[str]:
    """Raises `UsageError` for what no page can have."""
    from edgewise.listening.origins import require_origin

    return [require_origin(origin) for origin in given or ()]


def _require_extra() -> None:
    try:
        import fastapi
        import sse_starlette
        import structlog
        import swagger_ui_bundle
        import uvicorn

        del fastapi, sse_starlette, structlog, swagger_ui_bundle, uvicorn
    except ImportError as error:
        raise UsageError(
            f"The server needs {error.name}: pip install 'edgewise[serve]'."
        ) from error
