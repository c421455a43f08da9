"""`edgewise serve`: OpenAI's API and a page in front of the pair."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli import render
from edgewise.cli.options import MACHINE, MODELS, ROUTING, SAMPLING, SERVING, takes
from edgewise.errors import UsageError
from edgewise.pair import Pair, open_pair
from edgewise.parts import sampling_of
from edgewise.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from edgewise.server.answering import Answering

LOOPBACK = ("127.0.0.1", "localhost")
DEFAULT_SLOTS = 4


@takes(*MODELS, *ROUTING, *SAMPLING, *MACHINE, *SERVING, reads=["cloud_key"])
def serve(
    chosen: Settings,
    queue: Annotated[int, typer.Option(min=0, help="Answers that may wait; more get a 429.")] = 32,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK[0],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8300,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of another page that may ask; repeatable.")
    ] = None,
) -> None:
    """Serve OpenAI's API and a chat page: model ids edgewise, edgewise@0.05, edgewise:edge|cloud.

    What a request leaves out is as the flags say.
    """
    if host not in LOOPBACK and not chosen.api_key:
        raise UsageError(
            f"Without a key anybody who reaches {host} could use the models; give --api-key."
        )
    sampling_of(chosen)  # refused now and not once the models are loaded
    _require_extra()
    slots = chosen.slots or DEFAULT_SLOTS
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(host, port))
        pair = stack.enter_context(open_pair(chosen, slots=slots, keep_prefixes=True))
        answering = _answering(pair, chosen, slots=slots, queue=queue)
        stack.callback(answering.close)
        app = _app(answering, chosen.api_key, cors_origin or (), host)
        where = f"http://{host}:{listening.getsockname()[1]}"
        render.note(f"serving {pair.edge.name} at {where} (page, /v1, /docs)")
        _run(app, listening)


def _answering(pair: Pair, chosen: Settings, *, slots: int, queue: int) -> "Answering":
    from edgewise.server.answering import Answering

    return Answering(
        edge=pair.edge,
        router=pair.router,
        card=pair.card,
        settings=chosen,
        cloud=pair.cloud,
        slots=slots,
        queue=queue,
    )


def _app(
    answering: "Answering", api_key: str | None, origins: Sequence[str], host: str
) -> "FastAPI":
    from edgewise.server.app import make_app

    hosts = (*LOOPBACK, host) if host in LOOPBACK else ("*",)
    return make_app(answering, api_key=api_key, origins=origins, hosts=hosts)


def _run(app: "FastAPI", listening: socket.socket) -> None:
    """Until a signal ends it."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Before the models are loaded, which takes longer than finding out that a port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{host}:{port} cannot be listened on: {reason}.") from error


def _require_extra() -> None:
    try:
        import fastapi
        import sse_starlette
        import swagger_ui_bundle
        import uvicorn

        del fastapi, sse_starlette, swagger_ui_bundle, uvicorn
    except ImportError as error:
        raise UsageError(
            f"The server needs {error.name}: pip install 'edgewise[serve]'."
        ) from error
